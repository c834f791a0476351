// The arithmetic of a Vision Transformer for WebAssembly with 128-bit SIMD: what `network.js` calls between two layers.
//
// Built by benchmarks/build_kernels.py to kernels.wasm, without any library. Every pointer is an address in the one memory
// that `kernels.js` hands out. `kernels.js` has the same functions in plain JavaScript, for where WebAssembly is missing.
//
// Matrices that are multiplied with are packed: columns in groups of 8, each group row by row, the last one filled up with
// zeros. One group then stays in the nearest cache while all rows go past it, four at a time, in 8 registers of sums.

#include <stdint.h>
#include <wasm_simd128.h>

#define EXPORT(name) __attribute__((export_name(name), visibility("default")))
#define GROUP 8

typedef v128_t four;

static inline four all(float value) { return wasm_f32x4_splat(value); }
static inline four add4(four a, four b) { return wasm_f32x4_add(a, b); }
static inline four mul4(four a, four b) { return wasm_f32x4_mul(a, b); }
static inline float sum4(four a) {
  return (wasm_f32x4_extract_lane(a, 0) + wasm_f32x4_extract_lane(a, 1)) +
         (wasm_f32x4_extract_lane(a, 2) + wasm_f32x4_extract_lane(a, 3));
}

// e^x, to about 1e-7 of itself: 2^n · e^r with |r| ≤ ln 2 / 2, and a polynomial for e^r (Cephes' coefficients)
static inline four exp4(four x) {
  x = wasm_f32x4_min(wasm_f32x4_max(x, all(-87.3f)), all(88.3f));
  four n = wasm_f32x4_nearest(mul4(x, all(1.44269504088896341f)));
  four r = wasm_f32x4_sub(x, mul4(n, all(0.693359375f)));
  r = wasm_f32x4_sub(r, mul4(n, all(-2.12194440e-4f)));
  four p = all(1.9875691500e-4f);
  p = add4(mul4(p, r), all(1.3981999507e-3f));
  p = add4(mul4(p, r), all(8.3334519073e-3f));
  p = add4(mul4(p, r), all(4.1665795894e-2f));
  p = add4(mul4(p, r), all(1.6666665459e-1f));
  p = add4(mul4(p, r), all(5.0000001201e-1f));
  p = add4(add4(mul4(mul4(p, r), r), r), all(1.0f));
  four power = wasm_i32x4_shl(wasm_i32x4_add(wasm_i32x4_trunc_sat_f32x4(n), wasm_i32x4_splat(127)), 23);
  return mul4(p, power);
}

// the error function, to 1.5e-7 (Abramowitz & Stegun 7.1.26)
static inline four erf4(four x) {
  four size = wasm_f32x4_abs(x), sign = wasm_v128_and(x, wasm_f32x4_splat(-0.0f));
  four t = wasm_f32x4_div(all(1.0f), add4(all(1.0f), mul4(all(0.3275911f), size)));
  four p = all(1.061405429f);
  p = add4(mul4(p, t), all(-1.453152027f));
  p = add4(mul4(p, t), all(1.421413741f));
  p = add4(mul4(p, t), all(-0.284496736f));
  p = add4(mul4(p, t), all(0.254829592f));
  four found = wasm_f32x4_sub(all(1.0f), mul4(mul4(p, t), exp4(wasm_f32x4_neg(mul4(x, x)))));
  return wasm_v128_or(found, sign);
}

static inline four sigmoid4(four x) { return wasm_f32x4_div(all(1.0f), add4(all(1.0f), exp4(wasm_f32x4_neg(x)))); }

static inline four act4(four x, int kind) {
  switch (kind) {
    case 0: return mul4(mul4(all(0.5f), x), add4(all(1.0f), erf4(mul4(x, all(0.70710678118654752f)))));
    case 1: {  // 0.5 x (1 + tanh(u)) is x · sigmoid(2 u)
      four u = mul4(all(0.79788456080286536f), add4(x, mul4(all(0.044715f), mul4(mul4(x, x), x))));
      return mul4(x, sigmoid4(add4(u, u)));
    }
    case 2: return mul4(x, sigmoid4(mul4(all(1.702f), x)));
    case 3: return wasm_f32x4_max(x, all(0.0f));
    case 4: return mul4(x, sigmoid4(x));
    default: return wasm_f32x4_sub(mul4(all(2.0f), sigmoid4(add4(x, x))), all(1.0f));  // tanh
  }
}

// 16-bit floats to 32-bit ones
EXPORT("widen") void widen(float *out, const uint16_t *in, int count) {
  for (int i = 0; i < count; i++) {
    uint32_t half = in[i], sign = (half & 0x8000) << 16, rest = half & 0x7fff;
    union { uint32_t bits; float value; } found;
    if (rest >= 0x7c00) found.bits = sign | 0x7f800000 | ((rest & 0x3ff) << 13);
    else if (rest >= 0x400) found.bits = sign | ((rest << 13) + (112u << 23));
    else {
      found.value = (float)rest * 5.9604644775390625e-8f;  // below the normal numbers: steps of 2^-24
      found.bits |= sign;
    }
    out[i] = found.value;
  }
}

// rows of bytes, each with its own scale, to floats
EXPORT("scale") void scale(float *out, const int8_t *in, const float *scales, int rows, int columns) {
  for (int row = 0; row < rows; row++)
    for (int i = 0; i < columns; i++) *out++ = (float)*in++ * scales[row];
}

// A matrix [n k], whose element (j, i) lies at w[j · down + i · across], for `product`
EXPORT("pack") void pack(float *out, const float *w, int n, int k, int down, int across) {
  for (int first = 0; first < n; first += GROUP)
    for (int i = 0; i < k; i++)
      for (int j = first; j < first + GROUP; j++) *out++ = j < n ? w[j * down + i * across] : 0.0f;
}

static inline void store(float *c, four low, four high, const float *bias, four factor, int left) {
  low = mul4(low, factor), high = mul4(high, factor);
  if (bias) low = add4(low, wasm_v128_load(bias)), high = add4(high, wasm_v128_load(bias + 4));
  if (left >= GROUP) {
    wasm_v128_store(c, low), wasm_v128_store(c + 4, high);
    return;
  }
  float rest[GROUP];
  wasm_v128_store(rest, low), wasm_v128_store(rest + 4, high);
  for (int i = 0; i < left; i++) c[i] = rest[i];
}

// c [m n] = factor · a [m k] × packed [n k]ᵀ + bias; rows of a and c are `wide` and `out` numbers apart
EXPORT("product")
void product(float *c, const float *a, const float *packed, const float *bias, int m, int n, int k, int wide, int out, float factor) {
  four times = all(factor);
  for (int first = 0; first < n; first += GROUP, packed += GROUP * k) {
    int left = n - first, row = 0;
    const float *own = bias ? bias + first : 0;
    for (; row + 4 <= m; row += 4) {
      const float *a0 = a + row * wide, *a1 = a0 + wide, *a2 = a1 + wide, *a3 = a2 + wide, *w = packed;
      four c00 = all(0), c01 = c00, c10 = c00, c11 = c00, c20 = c00, c21 = c00, c30 = c00, c31 = c00;
      for (int i = 0; i < k; i++, w += GROUP) {
        four low = wasm_v128_load(w), high = wasm_v128_load(w + 4), x;
        x = wasm_v128_load32_splat(a0 + i), c00 = add4(c00, mul4(x, low)), c01 = add4(c01, mul4(x, high));
        x = wasm_v128_load32_splat(a1 + i), c10 = add4(c10, mul4(x, low)), c11 = add4(c11, mul4(x, high));
        x = wasm_v128_load32_splat(a2 + i), c20 = add4(c20, mul4(x, low)), c21 = add4(c21, mul4(x, high));
        x = wasm_v128_load32_splat(a3 + i), c30 = add4(c30, mul4(x, low)), c31 = add4(c31, mul4(x, high));
      }
      float *to = c + row * out + first;
      store(to, c00, c01, own, times, left), store(to + out, c10, c11, own, times, left);
      store(to + 2 * out, c20, c21, own, times, left), store(to + 3 * out, c30, c31, own, times, left);
    }
    for (; row < m; row++) {
      const float *a0 = a + row * wide, *w = packed;
      four low = all(0), high = low;
      for (int i = 0; i < k; i++, w += GROUP) {
        four x = wasm_v128_load32_splat(a0 + i);
        low = add4(low, mul4(x, wasm_v128_load(w))), high = add4(high, mul4(x, wasm_v128_load(w + 4)));
      }
      store(c + row * out + first, low, high, own, times, left);
    }
  }
}

// c [m k] = a [m n] × packed [n k], the way back through `product`; `sums` has room for 4 k numbers
EXPORT("back")
void back(float *c, const float *a, const float *packed, float *sums, int m, int n, int k, int wide, int out) {
  for (int row = 0; row < m; row++) {
    for (int i = 0; i < 4 * k; i += 4) wasm_v128_store(sums + i, all(0));
    const float *w = packed;
    for (int first = 0; first < n; first += GROUP) {
      float slopes[GROUP];
      for (int j = 0; j < GROUP; j++) slopes[j] = first + j < n ? a[row * wide + first + j] : 0.0f;
      four low = wasm_v128_load(slopes), high = wasm_v128_load(slopes + 4);
      for (int i = 0; i < k; i++, w += GROUP) {
        four found = add4(mul4(low, wasm_v128_load(w)), mul4(high, wasm_v128_load(w + 4)));
        wasm_v128_store(sums + 4 * i, add4(wasm_v128_load(sums + 4 * i), found));
      }
    }
    for (int i = 0; i < k; i++) c[row * out + i] = sum4(wasm_v128_load(sums + 4 * i));
  }
}

// Layer norm of each row [m d], or root mean square norm; weight and bias may be missing
EXPORT("norm")
void norm(float *out, const float *x, const float *weight, const float *bias, int m, int d, float eps, int rms) {
  for (int row = 0; row < m; row++, x += d, out += d) {
    four sum = all(0), square = all(0);
    float mean = 0, rest = 0;
    int i = 0;
    if (!rms) {
      for (; i + 4 <= d; i += 4) sum = add4(sum, wasm_v128_load(x + i));
      for (; i < d; i++) rest += x[i];
      mean = (sum4(sum) + rest) / (float)d;
    }
    four middle = all(mean);
    for (i = 0, rest = 0; i + 4 <= d; i += 4) {
      four away = wasm_f32x4_sub(wasm_v128_load(x + i), middle);
      square = add4(square, mul4(away, away));
    }
    for (; i < d; i++) rest += (x[i] - mean) * (x[i] - mean);
    float factor = 1.0f / __builtin_sqrtf((sum4(square) + rest) / (float)d + eps);
    four times = all(factor);
    for (i = 0; i + 4 <= d; i += 4) {
      four value = mul4(wasm_f32x4_sub(wasm_v128_load(x + i), middle), times);
      if (weight) value = mul4(value, wasm_v128_load(weight + i));
      if (bias) value = add4(value, wasm_v128_load(bias + i));
      wasm_v128_store(out + i, value);
    }
    for (; i < d; i++) {
      float value = (x[i] - mean) * factor;
      if (weight) value *= weight[i];
      out[i] = bias ? value + bias[i] : value;
    }
  }
}

// The softmax of each row [m n], in its own memory; `mask` [n] is added to each, −∞ where a column is forbidden
EXPORT("softmax") void softmax(float *x, const float *mask, int m, int n) {
  for (int row = 0; row < m; row++, x += n) {
    float most = -__builtin_inff(), total = 0;
    for (int i = 0; i < n; i++) {
      if (mask) x[i] += mask[i];
      if (x[i] > most) most = x[i];
    }
    four highest = all(most), sum = all(0);
    int i = 0;
    for (; i + 4 <= n; i += 4) {
      four away = wasm_f32x4_sub(wasm_v128_load(x + i), highest);
      four value = wasm_v128_and(exp4(away), wasm_f32x4_gt(away, all(-87.0f)));  // nothing is left of what is forbidden
      wasm_v128_store(x + i, value);
      sum = add4(sum, value);
    }
    for (; i < n; i++) {
      float away = x[i] - most;
      x[i] = away > -87.0f ? wasm_f32x4_extract_lane(exp4(all(away)), 0) : 0.0f;
      total += x[i];
    }
    float share = 1.0f / (sum4(sum) + total);
    for (i = 0; i + 4 <= n; i += 4) wasm_v128_store(x + i, mul4(wasm_v128_load(x + i), all(share)));
    for (; i < n; i++) x[i] *= share;
  }
}

// The activation of every number, in its own memory: GELU, its tanh form, quick GELU, ReLU, SiLU, tanh
EXPORT("activate") void activate(float *x, int count, int kind) {
  int i = 0;
  for (; i + 4 <= count; i += 4) wasm_v128_store(x + i, act4(wasm_v128_load(x + i), kind));
  for (; i < count; i++) x[i] = wasm_f32x4_extract_lane(act4(all(x[i]), kind), 0);
}

// x += factors · y, row by row [m d]; without factors x += y
EXPORT("add") void add(float *x, const float *y, const float *factors, int m, int d) {
  for (int row = 0; row < m; row++)
    for (int i = 0; i < d; i++, x++, y++) *x += factors ? factors[i] * *y : *y;
}

// x = x · y, number by number
EXPORT("multiply") void multiply(float *x, const float *y, int count) {
  for (int i = 0; i < count; i++) x[i] *= y[i];
}
