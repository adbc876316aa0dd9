// Sixteen-lane vectors, the only thing that differs between instruction sets.
//
// Kernels are written once over two types:
//   F16     16 float lanes
//   Pairs   16 lanes of two bfloat16 each: lane i holds elements 2i (even) and 2i+1 (odd)
// A translation unit is built for one instruction set; the compiler's own macros choose the bodies below. Memory layouts
// never depend on it. Within one build every function is a fixed sequence of IEEE operations on each lane, so a lane's
// result never depends on what the other lanes hold.
//
// dot_bf16_pairs: VDPBF16PS where the machine has it (fp32 accumulation, denormals flushed, order fixed by the machine);
// otherwise acc = fma(even, even, acc), then acc = fma(odd, odd, acc).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#define POLYBATCH_INLINE inline __attribute__((always_inline))

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

#if defined(__AVX512F__)  // ------------------------------------------------------------------------------- AVX-512

#if defined(__AVX512BF16__)
inline constexpr const char* kIsaName = "avx512_bf16";
#else
inline constexpr const char* kIsaName = "avx512";
#endif
inline constexpr TileShapes kTiles{{14, 2}, {6, 4}, {6, 4}};

struct F16 {
  __m512 v;
};
struct Pairs {
  __m512i v;
};

POLYBATCH_INLINE __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1u); }

POLYBATCH_INLINE F16 zero() { return {_mm512_setzero_ps()}; }
POLYBATCH_INLINE F16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
POLYBATCH_INLINE F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
POLYBATCH_INLINE F16 load_first(const float* p, int count) { return {_mm512_maskz_loadu_ps(first_lanes(count), p)}; }
POLYBATCH_INLINE void store(float* p, F16 x) { _mm512_storeu_ps(p, x.v); }
POLYBATCH_INLINE void store_first(float* p, F16 x, int count) { _mm512_mask_storeu_ps(p, first_lanes(count), x.v); }

POLYBATCH_INLINE F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
POLYBATCH_INLINE F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
POLYBATCH_INLINE F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
POLYBATCH_INLINE F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
POLYBATCH_INLINE F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
POLYBATCH_INLINE F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
POLYBATCH_INLINE F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
POLYBATCH_INLINE F16 round_to_integer(F16 x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// x * 2^n for integer-valued n in [-126, 127].
POLYBATCH_INLINE F16 scale_by_power_of_two(F16 x, F16 n) { return {_mm512_scalef_ps(x.v, n.v)}; }
// a < b ? yes : no, lane by lane.
POLYBATCH_INLINE F16 select_less(F16 a, F16 b, F16 yes, F16 no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
// Lanes first <= i < last keep x, the others become fill.
POLYBATCH_INLINE F16 keep_lanes(F16 x, int first, int last, F16 fill) {
  const __mmask16 keep = static_cast<__mmask16>(first_lanes(last) & ~first_lanes(first));
  return {_mm512_mask_blend_ps(keep, fill.v, x.v)};
}

POLYBATCH_INLINE F16 load(const BFloat16* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
POLYBATCH_INLINE __m256i to_bf16_lanes(F16 x) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.v));
#else
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16));
#endif
}
POLYBATCH_INLINE void store(BFloat16* p, F16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16_lanes(x));
}
POLYBATCH_INLINE void store_first(BFloat16* p, F16 x, int count) {
  _mm256_mask_storeu_epi16(p, first_lanes(count), to_bf16_lanes(x));
}

POLYBATCH_INLINE Pairs load_pairs(const BFloat16* p) { return {_mm512_loadu_si512(p)}; }
POLYBATCH_INLINE Pairs load_first_pairs(const BFloat16* p, int count) {
  return {_mm512_maskz_loadu_epi32(first_lanes(count), p)};
}
POLYBATCH_INLINE Pairs broadcast_pair(const BFloat16* p) {
  int32_t pair;
  std::memcpy(&pair, p, sizeof(pair));
  return {_mm512_set1_epi32(pair)};
}
POLYBATCH_INLINE Pairs even_only(Pairs x) { return {_mm512_and_si512(x.v, _mm512_set1_epi32(0xffff))}; }
POLYBATCH_INLINE F16 dot_bf16_pairs(F16 acc, Pairs a, Pairs b) {
#if defined(__AVX512BF16__)
  return {_mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
#else
  const __m512i odd = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000));
  const __m512 a_even = _mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16));
  const __m512 b_even = _mm512_castsi512_ps(_mm512_slli_epi32(b.v, 16));
  const __m512 a_odd = _mm512_castsi512_ps(_mm512_and_si512(a.v, odd));
  const __m512 b_odd = _mm512_castsi512_ps(_mm512_and_si512(b.v, odd));
  return {_mm512_fmadd_ps(a_odd, b_odd, _mm512_fmadd_ps(a_even, b_even, acc.v))};
#endif
}

// to[s * 8 + i] = rows[i][s]: sixteen groups of four bytes of each of eight rows.
#define POLYBATCH_HAS_TRANSPOSE 1
POLYBATCH_INLINE void transpose_groups(const uint32_t* const rows[kPackedPitch], uint32_t* to) {
  __m512i a[kPackedPitch], b[kPackedPitch];
  for (int i = 0; i < kPackedPitch; ++i) a[i] = _mm512_loadu_si512(rows[i]);
  for (int i = 0; i < kPackedPitch; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < kPackedPitch; i += 4)
    for (int j = 0; j < 2; ++j) {
      a[i + 2 * j] = _mm512_unpacklo_epi64(b[i + j], b[i + j + 2]);
      a[i + 2 * j + 1] = _mm512_unpackhi_epi64(b[i + j], b[i + j + 2]);
    }
  // Now quarter q of a[c] holds column c + 4 q of rows 0 .. 3, and of a[c + 4] that of rows 4 .. 7.
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i last = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  for (int c = 0; c < 4; ++c)
    for (int half = 0; half < 2; ++half) {
      const __m512i both = _mm512_permutex2var_epi64(a[c], half ? last : first, a[c + 4]);
      uint32_t* column = to + (c + 8 * half) * kPackedPitch;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(column), _mm512_castsi512_si256(both));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(column + 4 * kPackedPitch), _mm512_extracti64x4_epi64(both, 1));
    }
}

#elif defined(__AVX2__) && defined(__FMA__)  // ---------------------------------------------------------------- AVX2

inline constexpr const char* kIsaName = "avx2";
inline constexpr TileShapes kTiles{{6, 1}, {6, 1}, {6, 1}};

struct F16 {
  __m256 lo, hi;
};
struct Pairs {
  __m256i lo, hi;
};

// All ones in lanes base + i < count.
POLYBATCH_INLINE __m256i lanes_below(int count, int base) {
  const __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(base));
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane);
}

POLYBATCH_INLINE F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
POLYBATCH_INLINE F16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
POLYBATCH_INLINE F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
POLYBATCH_INLINE F16 load_first(const float* p, int count) {
  return {_mm256_maskload_ps(p, lanes_below(count, 0)), _mm256_maskload_ps(p + 8, lanes_below(count, 8))};
}
POLYBATCH_INLINE void store(float* p, F16 x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
POLYBATCH_INLINE void store_first(float* p, F16 x, int count) {
  _mm256_maskstore_ps(p, lanes_below(count, 0), x.lo);
  _mm256_maskstore_ps(p + 8, lanes_below(count, 8), x.hi);
}

POLYBATCH_INLINE F16 operator+(F16 a, F16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
POLYBATCH_INLINE F16 operator-(F16 a, F16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
POLYBATCH_INLINE F16 operator*(F16 a, F16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
POLYBATCH_INLINE F16 operator/(F16 a, F16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
POLYBATCH_INLINE F16 fma(F16 a, F16 b, F16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
POLYBATCH_INLINE F16 max(F16 a, F16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
POLYBATCH_INLINE F16 min(F16 a, F16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
POLYBATCH_INLINE F16 round_to_integer(F16 x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.lo, kNearest), _mm256_round_ps(x.hi, kNearest)};
}
POLYBATCH_INLINE __m256 power_of_two(__m256 n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
POLYBATCH_INLINE F16 scale_by_power_of_two(F16 x, F16 n) {
  return {_mm256_mul_ps(x.lo, power_of_two(n.lo)), _mm256_mul_ps(x.hi, power_of_two(n.hi))};
}
POLYBATCH_INLINE F16 select_less(F16 a, F16 b, F16 yes, F16 no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
POLYBATCH_INLINE F16 keep_lanes(F16 x, int first, int last, F16 fill) {
  const __m256i lo = _mm256_andnot_si256(lanes_below(first, 0), lanes_below(last, 0));
  const __m256i hi = _mm256_andnot_si256(lanes_below(first, 8), lanes_below(last, 8));
  return {_mm256_blendv_ps(fill.lo, x.lo, _mm256_castsi256_ps(lo)),
          _mm256_blendv_ps(fill.hi, x.hi, _mm256_castsi256_ps(hi))};
}

POLYBATCH_INLINE __m256 widen_bf16(const BFloat16* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
POLYBATCH_INLINE F16 load(const BFloat16* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
// The bfloat16 of each lane, nearest-even, in the low half of the lane.
POLYBATCH_INLINE __m256i round_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
POLYBATCH_INLINE void store(BFloat16* p, F16 x) {
  const __m256i packed = _mm256_packus_epi32(round_bf16(x.lo), round_bf16(x.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
}
POLYBATCH_INLINE void store_first(BFloat16* p, F16 x, int count) {
  BFloat16 all[kLanes];
  store(all, x);
  std::memcpy(p, all, count * sizeof(BFloat16));
}

POLYBATCH_INLINE Pairs load_pairs(const BFloat16* p) {
  const __m256i* q = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
POLYBATCH_INLINE Pairs load_first_pairs(const BFloat16* p, int count) {
  const int* q = reinterpret_cast<const int*>(p);
  return {_mm256_maskload_epi32(q, lanes_below(count, 0)), _mm256_maskload_epi32(q + 8, lanes_below(count, 8))};
}
POLYBATCH_INLINE Pairs broadcast_pair(const BFloat16* p) {
  int32_t pair;
  std::memcpy(&pair, p, sizeof(pair));
  return {_mm256_set1_epi32(pair), _mm256_set1_epi32(pair)};
}
POLYBATCH_INLINE Pairs even_only(Pairs x) {
  const __m256i low = _mm256_set1_epi32(0xffff);
  return {_mm256_and_si256(x.lo, low), _mm256_and_si256(x.hi, low)};
}
POLYBATCH_INLINE F16 even_lanes(Pairs x) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(x.lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(x.hi, 16))};
}
POLYBATCH_INLINE F16 odd_lanes(Pairs x) {
  const __m256i high = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000));
  return {_mm256_castsi256_ps(_mm256_and_si256(x.lo, high)), _mm256_castsi256_ps(_mm256_and_si256(x.hi, high))};
}
POLYBATCH_INLINE F16 dot_bf16_pairs(F16 acc, Pairs a, Pairs b) {
  return fma(odd_lanes(a), odd_lanes(b), fma(even_lanes(a), even_lanes(b), acc));
}

#else  // ----------------------------------------------------------------------------------------------- portable

inline constexpr const char* kIsaName = "portable";
#if defined(__aarch64__)
inline constexpr TileShapes kTiles{{6, 1}, {6, 1}, {6, 1}};  // 32 registers
#else
inline constexpr TileShapes kTiles{{3, 1}, {3, 1}, {3, 1}};  // 16 registers
#endif

using Float4 = float __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));
inline constexpr int kQuarters = 4;
inline constexpr int kQuarterLanes = 4;

struct F16 {
  Float4 q[kQuarters];
};
struct Pairs {
  Int4 q[kQuarters];
};

#define POLYBATCH_EACH_QUARTER _Pragma("GCC unroll 4") for (int i = 0; i < kQuarters; ++i)

POLYBATCH_INLINE F16 broadcast(float x) {
  F16 r;
  POLYBATCH_EACH_QUARTER r.q[i] = Float4{x, x, x, x};
  return r;
}
POLYBATCH_INLINE F16 zero() { return broadcast(0.0f); }
POLYBATCH_INLINE F16 load(const float* p) {
  F16 r;
  POLYBATCH_EACH_QUARTER std::memcpy(&r.q[i], p + i * kQuarterLanes, sizeof(Float4));
  return r;
}
POLYBATCH_INLINE void store(float* p, F16 x) {
  POLYBATCH_EACH_QUARTER std::memcpy(p + i * kQuarterLanes, &x.q[i], sizeof(Float4));
}
POLYBATCH_INLINE F16 load_first(const float* p, int count) {
  float all[kLanes] = {};
  std::memcpy(all, p, count * sizeof(float));
  return load(all);
}
POLYBATCH_INLINE void store_first(float* p, F16 x, int count) {
  float all[kLanes];
  store(all, x);
  std::memcpy(p, all, count * sizeof(float));
}

POLYBATCH_INLINE F16 operator+(F16 a, F16 b) {
  POLYBATCH_EACH_QUARTER a.q[i] += b.q[i];
  return a;
}
POLYBATCH_INLINE F16 operator-(F16 a, F16 b) {
  POLYBATCH_EACH_QUARTER a.q[i] -= b.q[i];
  return a;
}
POLYBATCH_INLINE F16 operator*(F16 a, F16 b) {
  POLYBATCH_EACH_QUARTER a.q[i] *= b.q[i];
  return a;
}
POLYBATCH_INLINE F16 operator/(F16 a, F16 b) {
  POLYBATCH_EACH_QUARTER a.q[i] /= b.q[i];
  return a;
}
// One rounding where the machine has a fused multiply-add, two where it would have to be emulated.
POLYBATCH_INLINE F16 fma(F16 a, F16 b, F16 c) {
  POLYBATCH_EACH_QUARTER {
#if defined(__FP_FAST_FMAF)
    for (int lane = 0; lane < kQuarterLanes; ++lane)
      c.q[i][lane] = __builtin_fmaf(a.q[i][lane], b.q[i][lane], c.q[i][lane]);
#else
    c.q[i] = a.q[i] * b.q[i] + c.q[i];
#endif
  }
  return c;
}
POLYBATCH_INLINE Float4 blend(Int4 mask, Float4 yes, Float4 no) { return mask ? yes : no; }
POLYBATCH_INLINE F16 max(F16 a, F16 b) {
  POLYBATCH_EACH_QUARTER a.q[i] = blend(a.q[i] > b.q[i], a.q[i], b.q[i]);
  return a;
}
POLYBATCH_INLINE F16 min(F16 a, F16 b) {
  POLYBATCH_EACH_QUARTER a.q[i] = blend(a.q[i] < b.q[i], a.q[i], b.q[i]);
  return a;
}
POLYBATCH_INLINE F16 round_to_integer(F16 x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it leaves no fraction bits, for |x| < 2^22
  POLYBATCH_EACH_QUARTER x.q[i] = (x.q[i] + kMagic) - kMagic;
  return x;
}
POLYBATCH_INLINE F16 scale_by_power_of_two(F16 x, F16 n) {
  POLYBATCH_EACH_QUARTER {
    const Int4 exponent = (__builtin_convertvector(n.q[i], Int4) + 127) << 23;
    Float4 power;
    std::memcpy(&power, &exponent, sizeof(power));
    x.q[i] *= power;
  }
  return x;
}
POLYBATCH_INLINE F16 select_less(F16 a, F16 b, F16 yes, F16 no) {
  POLYBATCH_EACH_QUARTER no.q[i] = blend(a.q[i] < b.q[i], yes.q[i], no.q[i]);
  return no;
}
POLYBATCH_INLINE F16 keep_lanes(F16 x, int first, int last, F16 fill) {
  POLYBATCH_EACH_QUARTER {
    const Int4 lane = Int4{0, 1, 2, 3} + i * kQuarterLanes;
    x.q[i] = blend((lane >= first) & (lane < last), x.q[i], fill.q[i]);
  }
  return x;
}

POLYBATCH_INLINE F16 load(const BFloat16* p) {
  float all[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint32_t bits = static_cast<uint32_t>(p[lane].bits) << 16;
    std::memcpy(all + lane, &bits, sizeof(bits));
  }
  return load(all);
}
POLYBATCH_INLINE void store_first(BFloat16* p, F16 x, int count) {
  uint32_t all[kLanes];
  std::memcpy(all, &x, sizeof(all));
  for (int lane = 0; lane < count; ++lane) {
    const uint32_t bits = all[lane];
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = nan ? bits | 0x00400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
    p[lane].bits = static_cast<uint16_t>(rounded >> 16);
  }
}
POLYBATCH_INLINE void store(BFloat16* p, F16 x) { store_first(p, x, kLanes); }

POLYBATCH_INLINE Pairs load_pairs(const BFloat16* p) {
  Pairs r;
  POLYBATCH_EACH_QUARTER std::memcpy(&r.q[i], p + 2 * i * kQuarterLanes, sizeof(Int4));
  return r;
}
POLYBATCH_INLINE Pairs load_first_pairs(const BFloat16* p, int count) {
  BFloat16 all[2 * kLanes] = {};
  std::memcpy(all, p, 2 * count * sizeof(BFloat16));
  return load_pairs(all);
}
// Even and odd elements as integers: element 2i comes first in memory on either byte order.
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
POLYBATCH_INLINE Int4 even_bits(Int4 pairs) { return pairs << 16; }
POLYBATCH_INLINE Int4 odd_bits(Int4 pairs) { return pairs & static_cast<int32_t>(0xffff0000); }
inline constexpr int32_t kEvenMask = 0x0000ffff;
#else
POLYBATCH_INLINE Int4 even_bits(Int4 pairs) { return pairs & static_cast<int32_t>(0xffff0000); }
POLYBATCH_INLINE Int4 odd_bits(Int4 pairs) { return pairs << 16; }
inline constexpr int32_t kEvenMask = static_cast<int32_t>(0xffff0000);
#endif
POLYBATCH_INLINE Pairs broadcast_pair(const BFloat16* p) {
  int32_t pair;
  std::memcpy(&pair, p, sizeof(pair));
  Pairs r;
  POLYBATCH_EACH_QUARTER r.q[i] = Int4{pair, pair, pair, pair};
  return r;
}
POLYBATCH_INLINE Pairs even_only(Pairs x) {
  POLYBATCH_EACH_QUARTER x.q[i] &= kEvenMask;
  return x;
}
POLYBATCH_INLINE F16 dot_bf16_pairs(F16 acc, Pairs a, Pairs b) {
  F16 a_even, a_odd, b_even, b_odd;
  POLYBATCH_EACH_QUARTER {
    const Int4 bits[4] = {even_bits(a.q[i]), odd_bits(a.q[i]), even_bits(b.q[i]), odd_bits(b.q[i])};
    std::memcpy(&a_even.q[i], &bits[0], sizeof(Float4));
    std::memcpy(&a_odd.q[i], &bits[1], sizeof(Float4));
    std::memcpy(&b_even.q[i], &bits[2], sizeof(Float4));
    std::memcpy(&b_odd.q[i], &bits[3], sizeof(Float4));
  }
  return fma(a_odd, b_odd, fma(a_even, b_even, acc));
}

#endif

// ------------------------------------------------------------------------------------------- the same for every set

#if !defined(POLYBATCH_HAS_TRANSPOSE)
POLYBATCH_INLINE void transpose_groups(const uint32_t* const rows[kPackedPitch], uint32_t* to) {
  for (int s = 0; s < kLanes; ++s)
    for (int i = 0; i < kPackedPitch; ++i) to[s * kPackedPitch + i] = rows[i][s];
}
#endif

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

// e^x: Cody-Waite reduction and a degree-6 polynomial (Cephes expf), relative error < 2e-7. exp(0) is exactly 1;
// results below the smallest normal float are exactly 0 (so exp(-inf) = 0); x is capped where the result would overflow.
POLYBATCH_INLINE F16 exp(F16 x) {
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kSmallest = -87.3365448f;  // ln of the smallest normal float
  constexpr float kLargest = 88.3762626f;    // keeps the exponent at 127
  const F16 clamped = max(broadcast(kSmallest), min(broadcast(kLargest), x));  // in this order a NaN stays NaN
  const F16 n = round_to_integer(clamped * broadcast(kLog2E));
  const F16 r = fma(n, broadcast(-kLn2Low), fma(n, broadcast(-kLn2High), clamped));
  F16 p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(r * r, p, r + broadcast(1.0f));
  return select_less(x, broadcast(kSmallest), zero(), scale_by_power_of_two(p, n));
}

// tanh(x) = 1 - 2 / (e^2x + 1), absolute error < 3e-7.
POLYBATCH_INLINE F16 tanh(F16 x) {
  const F16 one = broadcast(1.0f);
  return one - broadcast(2.0f) / (exp(x + x) + one);
}

// Into all caches: on Zen 5 a prefetch into the L2 cache alone gains less, whatever falls out of L1 afterwards.
POLYBATCH_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

}  // namespace polybatch
