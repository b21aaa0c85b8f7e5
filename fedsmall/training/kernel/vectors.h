/* Vectors of W numbers without intrinsics, by the extensions of GCC and clang, and how rows are shared among registers. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef SET
#define SET 0 /* of instructions: plain, AVX2, AVX-512 on half its width, AVX-512 */
#endif
#define W (SET == 3 ? 16 : SET ? 8 : 4) /* numbers in a vector */
#if SET >= 2 || defined(__aarch64__)
#define MANY 1 /* 32 registers */
#else
#define MANY 0 /* 16 */
#endif
#define NAME(f) NAME_OF(f, SET) /* of a function for this set */
#define NAME_OF(f, set) NAMED(f, set)
#define NAMED(f, set) f##_##set
#define PAD(n) (((n) + W - 1) / W * W)
#define FOURS(n) (((n) + 3) / 4 * 4)
#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__) /* which knows GCC's word and leaves sums in memory: half as fast */
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 8")
#endif
#define EACH(i, n) UNROLLED for (int i = 0; i < (n); i++)
typedef float vector __attribute__((vector_size(4 * W)));
typedef float memory __attribute__((vector_size(4 * W), aligned(4), may_alias));
typedef int32_t whole __attribute__((vector_size(4 * W)));
#define D (W == 4 ? 4 : 8) /* numbers in a vector that is made double */
typedef float narrow __attribute__((vector_size(4 * D), aligned(4), may_alias));
typedef double wide __attribute__((vector_size(8 * D), aligned(8), may_alias));
typedef float four __attribute__((vector_size(16)));
typedef float memory4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t whole4 __attribute__((vector_size(16)));

INLINE vector load(const float *p) { return *(const memory *)p; }
INLINE void store(float *p, vector x) { *(memory *)p = x; }
INLINE vector all(float x) { return x - (vector){}; }

/* F for m rows, with their number known to the compiler. */
#define BY_ROWS(F, ...) \
    switch (m) { \
    case 1: F(1, __VA_ARGS__); break; case 2: F(2, __VA_ARGS__); break; case 3: F(3, __VA_ARGS__); break; \
    case 4: F(4, __VA_ARGS__); break; case 5: F(5, __VA_ARGS__); break; default: F(6, __VA_ARGS__); \
    }

/* The next of so many parts, all about equal and none above most. */
INLINE int share(int size, int most) { const int parts = (size + most - 1) / most; return (size + parts - 1) / parts; }
