// The matrix unit of newer Intel CPUs: 16 rows of A, 16 words deep, against 16 columns of B in one instruction. The packed weights
// and the keys and values of the cache are laid out as it wants its B operand: one row of B is one word of 16 columns.
//
// Every product of a bf16 model goes through it, however few rows there are: it sums in another order than the vector
// instructions do, and a row's result must not depend on its neighbours.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd.h"

#if defined(__AMX_BF16__) && defined(__AMX_TILE__) && WB_BF16_DOT
#define WB_AMX 1
#else
#define WB_AMX 0
#endif

namespace wb {

template <class T>
constexpr bool kMatrixUnit = false;
template <>
inline constexpr bool kMatrixUnit<bf16> = WB_AMX;

constexpr int kUnitHeight = 16;  // rows of an A tile
constexpr int kUnitWords = 16;  // words of an A tile's row, rows of a B tile

#if WB_AMX

// Shapes of the eight tile registers: LDTILECFG's operand.
struct alignas(64) TileShapes {
  uint8_t palette = 0, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int tile_rows, int words) {
    palette = 1;
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(words * 4);
  }
};

// GCC's own intrinsics don't say that they read memory.
#define WB_TILE_LOAD(tile, from, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"(static_cast<size_t>(stride)) : "memory")
#define WB_TILE_STORE(tile, to, stride) \
  asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(to), "r"(static_cast<size_t>(stride)) : "memory")
#define WB_TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile : :)
#define WB_TILE_DOT(acc, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #acc : :)

inline void load_shapes(const TileShapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory"); }

// A thread's use of the unit. Other libraries of the process keep their own shapes in the calling thread's registers and trust
// that these are still there.
class MatrixUnitScope {
 public:
  MatrixUnitScope() { asm volatile("sttilecfg %0" : "=m"(before_) : : "memory"); }
  MatrixUnitScope(const MatrixUnitScope&) = delete;
  MatrixUnitScope& operator=(const MatrixUnitScope&) = delete;
  ~MatrixUnitScope() {
    if (before_.palette)
      load_shapes(before_);
    else
      asm volatile("tilerelease" : :);
  }

 private:
  TileShapes before_;
};

#else

struct MatrixUnitScope {
  ~MatrixUnitScope() {}  // not trivial: an unused one is no mistake
};

#endif

}  // namespace wb
