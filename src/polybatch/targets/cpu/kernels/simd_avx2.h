// simd.h for AVX2 and FMA: a vector is two registers.
#pragma once

#include <immintrin.h>

#include "simd.h"

namespace polybatch {

inline constexpr const char* kIsaName = "avx2";
inline constexpr TileShapes kTiles{{6, 1}, {6, 1}, {6, 1}};

struct F16 {
  __m256 lo, hi;
};
struct I16 {
  __m256i lo, hi;
};
struct Groups {
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

POLYBATCH_INLINE Groups load_groups(const void* p) {
  const __m256i* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
POLYBATCH_INLINE Groups load_first_groups(const void* p, int count) {
  const int* q = static_cast<const int*>(p);
  return {_mm256_maskload_epi32(q, lanes_below(count, 0)), _mm256_maskload_epi32(q + 8, lanes_below(count, 8))};
}
POLYBATCH_INLINE Groups broadcast_group(const void* p) {
  int32_t pair;
  std::memcpy(&pair, p, sizeof(pair));
  return {_mm256_set1_epi32(pair), _mm256_set1_epi32(pair)};
}
POLYBATCH_INLINE Groups even_only(Groups x) {
  const __m256i low = _mm256_set1_epi32(0xffff);
  return {_mm256_and_si256(x.lo, low), _mm256_and_si256(x.hi, low)};
}
POLYBATCH_INLINE F16 even_lanes(Groups x) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(x.lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(x.hi, 16))};
}
POLYBATCH_INLINE F16 odd_lanes(Groups x) {
  const __m256i high = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000));
  return {_mm256_castsi256_ps(_mm256_and_si256(x.lo, high)), _mm256_castsi256_ps(_mm256_and_si256(x.hi, high))};
}
POLYBATCH_INLINE F16 dot_bf16_pairs(F16 acc, Groups a, Groups b) {
  return fma(odd_lanes(a), odd_lanes(b), fma(even_lanes(a), even_lanes(b), acc));
}

POLYBATCH_INLINE F16 abs(F16 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.lo), _mm256_andnot_ps(sign, x.hi)};
}
POLYBATCH_INLINE I16 load_ints(const int32_t* p) {
  const __m256i* q = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
POLYBATCH_INLINE F16 to_float(I16 x) { return {_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)}; }
POLYBATCH_INLINE __m256i dot_u8s8(__m256i acc, __m256i a, __m256i b) {
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(0xff)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
  return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
}
// acc + a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3: a unsigned, b signed.
POLYBATCH_INLINE I16 dot_u8s8(I16 acc, Groups a, Groups b) {
  return {dot_u8s8(acc.lo, a.lo, b.lo), dot_u8s8(acc.hi, a.hi, b.hi)};
}
// Integers in -128 .. 127, as bytes with 128 added.
POLYBATCH_INLINE void store_offset_bytes(uint8_t* p, F16 x) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi));
  const __m256i ordered = _mm256_permute4x64_epi64(words, _MM_SHUFFLE(3, 1, 2, 0));
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_xor_si128(bytes, _mm_set1_epi8(static_cast<char>(0x80))));
}

}  // namespace polybatch
