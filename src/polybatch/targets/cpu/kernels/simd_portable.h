// simd.h for any machine, in the compiler's own vectors of four lanes.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "simd.h"

namespace polybatch {

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
struct I16 {
  Int4 q[kQuarters];
};
struct Groups {
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

POLYBATCH_INLINE Groups load_groups(const void* p) {
  Groups r;
  POLYBATCH_EACH_QUARTER std::memcpy(&r.q[i], static_cast<const char*>(p) + i * sizeof(Int4), sizeof(Int4));
  return r;
}
POLYBATCH_INLINE Groups load_first_groups(const void* p, int count) {
  uint32_t all[kLanes] = {};
  std::memcpy(all, p, count * sizeof(uint32_t));
  return load_groups(all);
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
POLYBATCH_INLINE Groups broadcast_group(const void* p) {
  int32_t pair;
  std::memcpy(&pair, p, sizeof(pair));
  Groups r;
  POLYBATCH_EACH_QUARTER r.q[i] = Int4{pair, pair, pair, pair};
  return r;
}
POLYBATCH_INLINE Groups even_only(Groups x) {
  POLYBATCH_EACH_QUARTER x.q[i] &= kEvenMask;
  return x;
}
POLYBATCH_INLINE F16 dot_bf16_pairs(F16 acc, Groups a, Groups b) {
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

POLYBATCH_INLINE F16 abs(F16 x) {
  POLYBATCH_EACH_QUARTER {
    Int4 bits;
    std::memcpy(&bits, &x.q[i], sizeof(bits));
    bits &= 0x7fffffff;
    std::memcpy(&x.q[i], &bits, sizeof(bits));
  }
  return x;
}
POLYBATCH_INLINE I16 load_ints(const int32_t* p) {
  I16 r;
  POLYBATCH_EACH_QUARTER std::memcpy(&r.q[i], p + i * kQuarterLanes, sizeof(Int4));
  return r;
}
POLYBATCH_INLINE F16 to_float(I16 x) {
  F16 r;
  POLYBATCH_EACH_QUARTER r.q[i] = __builtin_convertvector(x.q[i], Float4);
  return r;
}
// acc + a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3: a unsigned, b signed.
POLYBATCH_INLINE I16 dot_u8s8(I16 acc, Groups a, Groups b) {
  POLYBATCH_EACH_QUARTER {
#if defined(__SSE2__)
    const __m128i x = reinterpret_cast<__m128i>(a.q[i]), y = reinterpret_cast<__m128i>(b.q[i]);
    const __m128i even = _mm_madd_epi16(_mm_and_si128(x, _mm_set1_epi16(0xff)), _mm_srai_epi16(_mm_slli_epi16(y, 8), 8));
    const __m128i odd = _mm_madd_epi16(_mm_srli_epi16(x, 8), _mm_srai_epi16(y, 8));
    acc.q[i] += reinterpret_cast<Int4>(_mm_add_epi32(even, odd));
#else
    for (int shift = 0; shift < 32; shift += 8) acc.q[i] += ((a.q[i] >> shift) & 0xff) * (b.q[i] << (24 - shift) >> 24);
#endif
  }
  return acc;
}
// Integers in -128 .. 127, as bytes with 128 added.
POLYBATCH_INLINE void store_offset_bytes(uint8_t* p, F16 x) {
  constexpr float kMagic = 12582912.0f + 128.0f;  // 1.5 * 2^23: the integer is then the lowest bits
  POLYBATCH_EACH_QUARTER {
    const Float4 shifted = x.q[i] + kMagic;
    Int4 bits;
    std::memcpy(&bits, &shifted, sizeof(bits));
    for (int lane = 0; lane < kQuarterLanes; ++lane) p[i * kQuarterLanes + lane] = static_cast<uint8_t>(bits[lane]);
  }
}

}  // namespace polybatch
