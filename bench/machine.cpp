// What the machine allows: how fast memory is read, and how fast one register tile multiplies from the L1 cache.
// Built and called by kernels.py with the flags of an instruction set.
#include <omp.h>

#include <chrono>
#include <cstdint>

#include "tile.h"

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

constexpr int kRows = polybatch::kTiles.packed.rows, kVectors = polybatch::kTiles.packed.vectors;
constexpr int kSteps = 64;

template <class Dot>
double multiply_adds_per_second(int threads, int repeats) {
  using namespace polybatch;
  alignas(64) static typename Dot::Element a[kRows * kSteps * Dot::kPack], b[kVectors * kSteps * kLanes * Dot::kPack];
  const double start = now();
  float total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
  {
    F16 acc[kRows][kVectors] = {};
    for (int repeat = 0; repeat < repeats; ++repeat) {
      asm volatile("" ::: "memory");
      const Columns<Dot> columns{b, kVectors * kLanes * Dot::kPack, kLanes * Dot::kPack};
      accumulate_tile<Dot>(acc, RowsInPlace<Dot, kRows>(a, kSteps * Dot::kPack), columns, kSteps);
    }
    for (auto& row : acc)
      for (F16& x : row) total += reduce_add(x);
  }
  const double done = double(threads) * repeats * kSteps * Dot::kPack * kRows * kVectors * kLanes;
  return total == 0 ? done / (now() - start) : 0;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) double read_bytes_per_second(const char* memory, int64_t bytes, int threads) {
  using namespace polybatch;
  const double start = now();
  float total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
  {
    const int64_t begin = bytes * omp_get_thread_num() / omp_get_num_threads() / 1024 * 1024;
    const int64_t end = bytes * (omp_get_thread_num() + 1) / omp_get_num_threads() / 1024 * 1024;
    F16 sum[4] = {};
    for (int64_t i = begin; i < end; i += 256)
      for (int j = 0; j < 4; ++j) sum[j] = max(sum[j], load(reinterpret_cast<const float*>(memory + i + j * 64)));
    total += reduce_max(max(max(sum[0], sum[1]), max(sum[2], sum[3])));
  }
  return total >= 0 ? bytes / (now() - start) : 0;
}

__attribute__((visibility("default"))) double multiply_adds(int is_bf16, int threads, int repeats) {
  return is_bf16 ? multiply_adds_per_second<polybatch::DotBF16>(threads, repeats)
                 : multiply_adds_per_second<polybatch::DotF32>(threads, repeats);
}
}
