// simd.h for AVX-512, with or without BF16 and VNNI.
#pragma once

#include <immintrin.h>

#include "simd.h"

namespace polybatch {

#if defined(__AVX512BF16__)
inline constexpr const char* kIsaName = "avx512_bf16";
#else
inline constexpr const char* kIsaName = "avx512";
#endif
inline constexpr TileShapes kTiles{{14, 2}, {6, 4}, {6, 4}};

struct F16 {
  __m512 v;
};
struct I16 {
  __m512i v;
};
struct Groups {
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

POLYBATCH_INLINE Groups load_groups(const void* p) { return {_mm512_loadu_si512(p)}; }
POLYBATCH_INLINE Groups load_first_groups(const void* p, int count) {
  return {_mm512_maskz_loadu_epi32(first_lanes(count), p)};
}
POLYBATCH_INLINE Groups broadcast_group(const void* p) {
  int32_t pair;
  std::memcpy(&pair, p, sizeof(pair));
  return {_mm512_set1_epi32(pair)};
}
POLYBATCH_INLINE Groups even_only(Groups x) { return {_mm512_and_si512(x.v, _mm512_set1_epi32(0xffff))}; }
POLYBATCH_INLINE F16 dot_bf16_pairs(F16 acc, Groups a, Groups b) {
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

POLYBATCH_INLINE F16 abs(F16 x) { return {_mm512_abs_ps(x.v)}; }
POLYBATCH_INLINE I16 load_ints(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
POLYBATCH_INLINE F16 to_float(I16 x) { return {_mm512_cvtepi32_ps(x.v)}; }
// acc + a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3: a unsigned, b signed.
POLYBATCH_INLINE I16 dot_u8s8(I16 acc, Groups a, Groups b) {
#if defined(__AVX512VNNI__)
  return {_mm512_dpbusd_epi32(acc.v, a.v, b.v)};
#else
  const __m512i even = _mm512_madd_epi16(_mm512_and_si512(a.v, _mm512_set1_epi16(0xff)),
                                         _mm512_srai_epi16(_mm512_slli_epi16(b.v, 8), 8));
  const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(a.v, 8), _mm512_srai_epi16(b.v, 8));
  return {_mm512_add_epi32(acc.v, _mm512_add_epi32(even, odd))};
#endif
}
// Integers in -128 .. 127, as bytes with 128 added.
POLYBATCH_INLINE void store_offset_bytes(uint8_t* p, F16 x) {
  const __m512i shifted = _mm512_add_epi32(_mm512_cvtps_epi32(x.v), _mm512_set1_epi32(128));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(shifted));
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

}  // namespace polybatch
