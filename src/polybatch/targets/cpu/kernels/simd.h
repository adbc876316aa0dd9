// Sixteen-lane vectors, the only thing that differs between instruction sets.
//
// Kernels are written once over these types:
//   F16     16 float lanes          I16     16 int32 lanes
//   Groups  16 lanes of four bytes each: two bfloat16 (lane i holds elements 2i, even, and 2i+1, odd) or four int8
// A translation unit is built for one instruction set; the compiler's own macros choose the bodies. Memory layouts never
// depend on it. Within one build every function is a fixed sequence of IEEE operations on each lane, so a lane's
// result never depends on what the other lanes hold.
//
// dot_bf16_pairs: VDPBF16PS where the machine has it (fp32 accumulation, denormals flushed, order fixed by the machine);
// otherwise acc = fma(even, even, acc), then acc = fma(odd, odd, acc).
// dot_u8s8: VPDPBUSD where the machine has it, otherwise widening multiply-adds; exact either way.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define POLYBATCH_INLINE inline __attribute__((always_inline))
#define POLYBATCH_INLINE_LAMBDA __attribute__((always_inline))

namespace polybatch {

inline constexpr int kLanes = 16;
inline constexpr int kCacheLine = 64;
inline constexpr int kPackedPitch = 8;  // rows side by side in a packed tile, at least kTiles.packed.rows

struct BFloat16 {
  uint16_t bits;
};

// What one register tile may hold: rows x vectors of accumulators, beside the operands. See tile.h.
struct TileShape {
  int rows, vectors;
};
struct TileShapes {
  TileShape alone;      // a linear whose rows all fit in one tile
  TileShape packed;     // a linear of more rows
  TileShape attention;
};

}  // namespace polybatch

#if defined(__AVX512F__)
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

namespace polybatch {

#if !defined(POLYBATCH_HAS_TRANSPOSE)
POLYBATCH_INLINE void transpose_groups(const uint32_t* const rows[kPackedPitch], uint32_t* to) {
  for (int s = 0; s < kLanes; ++s)
    for (int i = 0; i < kPackedPitch; ++i) to[s * kPackedPitch + i] = rows[i][s];
}
#endif

// Whether every tile of a linear holds pairs of vectors: then one can be the gate of the other.
inline constexpr bool kHasGates = kTiles.alone.vectors % 2 == 0 && kTiles.packed.vectors % 2 == 0;

// Lanes are combined as a fixed binary tree: i with i+8, then +4, +2, +1.
template <class Combine>
POLYBATCH_INLINE float reduce_lanes(F16 x, Combine combine) {
  alignas(64) float lane[kLanes];
  store(lane, x);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] = combine(lane[i], lane[i + half]);
  return lane[0];
}

POLYBATCH_INLINE float reduce_add(F16 x) {
#if defined(__AVX512F__)
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
  return reduce_lanes(x, [](float a, float b) { return a + b; });
#endif
}

POLYBATCH_INLINE float reduce_max(F16 x) {
#if defined(__AVX512F__)
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#else
  return reduce_lanes(x, [](float a, float b) { return a > b ? a : b; });
#endif
}

inline constexpr float kLog2E = 1.44269504088896341f;

// 2^x for x below 128: 2^n times a degree-5 minimax polynomial of 2^r, |r| <= 1/2; relative error < 2e-7. 2^0 is exactly 1;
// results below the smallest normal float are exactly 0 (so 2^-inf = 0).
POLYBATCH_INLINE F16 exp2(F16 x) {
  constexpr float kSmallest = -126.0f;  // log2 of the smallest normal float
  const F16 clamped = max(broadcast(kSmallest), x);  // in this order a NaN stays NaN
  const F16 n = round_to_integer(clamped);
  const F16 r = clamped - n;
  F16 p = broadcast(1.326472731e-3f);
  p = fma(p, r, broadcast(9.671512991e-3f));
  p = fma(p, r, broadcast(5.550733581e-2f));
  p = fma(p, r, broadcast(2.402224243e-1f));
  p = fma(p, r, broadcast(6.931470037e-1f));
  p = fma(p, r, broadcast(1.0f));
  return select_less(x, broadcast(kSmallest), zero(), scale_by_power_of_two(p, n));
}

// tanh(x) = 1 - 2 / (e^2x + 1), absolute error < 4e-7.
POLYBATCH_INLINE F16 tanh(F16 x) {
  constexpr float kSaturated = 20.0f;  // tanh is 1 from here on
  const F16 one = broadcast(1.0f);
  const F16 capped = min(broadcast(kSaturated), x);  // in this order a NaN stays NaN
  return one - broadcast(2.0f) / (exp2(capped * broadcast(2.0f * kLog2E)) + one);
}

// x / (1 + e^-x), relative error < 4e-7; 0 where e^x is below the smallest normal float.
POLYBATCH_INLINE F16 silu(F16 x) {
  constexpr float kNothing = -87.0f;
  const F16 power = min(broadcast(-kNothing * kLog2E), x * broadcast(-kLog2E));  // in this order a NaN stays NaN
  return select_less(x, broadcast(kNothing), zero(), x / (broadcast(1.0f) + exp2(power)));
}

// Into all caches: on Zen 5 a prefetch into the L2 cache alone gains less, whatever falls out of L1 afterwards.
POLYBATCH_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

}  // namespace polybatch
