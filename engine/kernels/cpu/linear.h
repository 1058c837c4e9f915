// Linear layers over packed weights: y = x . W^T with W [N, K].
//
// Packing: panels of 32 columns (rows of W); inside a panel, for each word of k, two vectors of 16 columns. A thread that
// computes a panel reads one contiguous stream. int8 weights (one scale per column) keep the order with one byte an element.
#pragma once

#include <algorithm>
#include <cmath>

#include "buffer.h"
#include "matrix_linear.h"
#include "team.h"
#include "tile.h"

namespace wb {

constexpr int kPanelVecs = 2;
constexpr int kPanelColumns = kPanelVecs * kLanes;
constexpr int kRowBlock = 16 * kTileRows;  // rows of one unit of work when there are many rows
constexpr int kManyRows = 64;
constexpr int kUnitsPerThread = 8;
constexpr size_t kWeightPrefetchBytes = 2048;
constexpr size_t kBlockBytes = size_t{768} << 10;  // of rows that stay in a core's cache while all panels pass (matrix unit)

// Words of a row, padded with zeros to what the products read.
template <class T>
constexpr int row_words(int elements) {
  return round_up(ceil_div(elements, kPerWord<T>), kMatrixUnit<T> ? kUnitWords : 1);
}

// Rows to reserve for `m`: the matrix unit reads whole tiles.
template <class T>
constexpr int readable_rows(int m) { return kMatrixUnit<T> ? round_up(m, kPairRows) : m; }

struct Linear {
  int n = 0;
  int k = 0;
  int panels = 0;
  int words = 0;  // of one row, padded with zeros
  bool gated = false;  // panels hold 16 gate columns and the 16 up columns that belong to them
  bool int8 = false;
  Buffer data;
  Buffer scales;  // float [panels * 32], int8 only
  Buffer bias;  // float [panels * 32], or empty; never with gated

  size_t vector_bytes(int per_word) const { return int8 ? static_cast<size_t>(kLanes * per_word) : 64; }
  size_t panel_bytes(int per_word) const { return static_cast<size_t>(words) * kPanelVecs * vector_bytes(per_word); }
};

// Pack row-major `w` ([n, k] of T). gated: w's first half are gate rows, its second half up rows.
template <class T>
Linear pack_linear(const T* w, const T* bias, int n, int k, bool gated, bool int8, Team& team) {
  Linear lin;
  lin.n = n;
  lin.k = k;
  lin.gated = gated;
  lin.int8 = int8;
  lin.panels = gated ? ceil_div(n / 2, kLanes) : ceil_div(n, kPanelColumns);
  lin.words = row_words<T>(k);
  const size_t panel_bytes = lin.panel_bytes(kPerWord<T>);
  lin.data = Buffer(panel_bytes * static_cast<size_t>(lin.panels));
  if (int8) lin.scales = Buffer(sizeof(float) * static_cast<size_t>(lin.panels) * kPanelColumns);
  if (bias) {
    lin.bias = Buffer(sizeof(float) * static_cast<size_t>(lin.panels) * kPanelColumns);
    for (int i = 0; i < n; ++i) lin.bias.as<float>()[i] = to_float(bias[i]);
  }

  const auto pack_panel = [&](int panel) {
    for (int column = 0; column < kPanelColumns; ++column) {
      const int vec = column / kLanes, lane = column % kLanes;
      const int index = gated ? panel * kLanes + lane : panel * kPanelColumns + column;
      if (index >= (gated ? n / 2 : n)) continue;
      const T* row = w + static_cast<size_t>(gated ? vec * (n / 2) + index : index) * static_cast<size_t>(k);
      float scale = 0;
      if (int8) {
        float peak = 0;
        for (int i = 0; i < k; ++i) peak = std::max(peak, std::fabs(to_float(row[i])));
        scale = peak > 0 ? peak / 127.0f : 1.0f;
        lin.scales.as<float>()[panel * kPanelColumns + column] = scale;
      }
      for (int i = 0; i < k; ++i) {
        const size_t word = static_cast<size_t>(i / kPerWord<T>);
        const size_t element =
            ((word * kPanelVecs + static_cast<size_t>(vec)) * kLanes + static_cast<size_t>(lane)) * kPerWord<T> +
            static_cast<size_t>(i % kPerWord<T>);
        char* base = lin.data.as<char>() + static_cast<size_t>(panel) * panel_bytes;
        if (int8)
          reinterpret_cast<int8_t*>(base)[element] = static_cast<int8_t>(std::lrintf(to_float(row[i]) / scale));
        else
          reinterpret_cast<T*>(base)[element] = row[i];
      }
    }
  };
  Stage stage;
  team.run([&](int) { stage.run(lin.panels, pack_panel); });
  team.settle();
  return lin;
}

// Where a panel's 32 results of one row go. `Store` and `Add` write float, `Gate` writes silu(gate) * up as T.
struct StoreFloat {
  float* out;
  size_t stride;
  WB_INLINE void operator()(const Linear& lin, int row, int panel, v16f x, v16f y) const {
    float* p = out + static_cast<size_t>(row) * stride + panel * kPanelColumns;
    const int left = lin.n - panel * kPanelColumns;
    store_partial(p, x, left);
    if (left > kLanes) store_partial(p + kLanes, y, left - kLanes);
  }
};

struct AddFloat {
  float* out;
  size_t stride;
  WB_INLINE void operator()(const Linear& lin, int row, int panel, v16f x, v16f y) const {
    float* p = out + static_cast<size_t>(row) * stride + panel * kPanelColumns;
    const int left = lin.n - panel * kPanelColumns;
    if (left >= kPanelColumns) {
      store16(p, load16(p) + x);
      store16(p + kLanes, load16(p + kLanes) + y);
      return;
    }
    for (int i = 0; i < left; ++i) p[i] += i < kLanes ? x[i] : y[i - kLanes];
  }
};

template <class T>
struct GatedSilu {
  T* out;
  size_t stride;
  WB_INLINE void operator()(const Linear& lin, int row, int panel, v16f gate, v16f up) const {
    const v16f y = gate / (exp16(-gate) + 1.0f) * up;
    store_partial(out + static_cast<size_t>(row) * stride + panel * kLanes, y, lin.n / 2 - panel * kLanes);
  }
};

// Scale, bias, and where a panel's results go: `rows` rows of `result`, from its column `offset` on.
template <class Out>
WB_INLINE void finish_panel(const Linear& lin, int row, int rows, int panel, const float* result, size_t stride, const Out& out) {
  const int column = panel * kPanelColumns;
  for (int r = 0; r < rows; ++r) {
    const float* pair = result + static_cast<size_t>(r) * stride;
    v16f left = load16(pair), right = load16(pair + kLanes);
    if (lin.int8) {
      left *= load16(lin.scales.as<float>() + column);
      right *= load16(lin.scales.as<float>() + column + kLanes);
    }
    if (lin.bias) {
      left += load16(lin.bias.as<float>() + column);
      right += load16(lin.bias.as<float>() + column + kLanes);
    }
    out(lin, row + r, panel, left, right);
  }
}

template <class T>
WB_INLINE void widen_panels(const char* from, int vectors, char* widened) {
  for (int i = 0; i < vectors; ++i)
    store(widened + static_cast<size_t>(i) * 64,
          Operand<T, int8_t>::load_words(from + static_cast<size_t>(i) * Operand<T, int8_t>::kBytes));
}

// Rows [row_begin, row_end) against `panels` neighbouring panels.
// int8 panels that several tiles use are widened once, into `widened`. `upcoming`: the panels that this thread will most likely
// want next, as many as here; tiles that find theirs in the cache fetch them meanwhile.
template <class T, class Out>
void linear_block(const Linear& lin, const uint32_t* x, size_t x_words, int row_begin, int row_end, int panel0, int panels,
                  const char* upcoming, char* widened, const Out& out) {
  size_t panel_bytes = lin.panel_bytes(kPerWord<T>);
  size_t vector_bytes = lin.vector_bytes(kPerWord<T>);
  const char* w = lin.data.as<char>() + static_cast<size_t>(panel0) * panel_bytes;
  const bool widen_on_the_fly = lin.int8 && row_end - row_begin <= kTileRows;
  if (lin.int8 && !widen_on_the_fly) {
    widen_panels<T>(w, panels * lin.words * kPanelVecs, widened);
    w = widened;
    vector_bytes = 64;
    panel_bytes = static_cast<size_t>(lin.words) * kPanelVecs * vector_bytes;
  }
  TileArgs tile;
  tile.words = lin.words;
  tile.stride = kPanelVecs * vector_bytes;
  for (int v = 0; v < panels * kPanelVecs; ++v)
    tile.column[v] = w + static_cast<size_t>(v / kPanelVecs) * panel_bytes + static_cast<size_t>(v % kPanelVecs) * vector_bytes;
  tile.ahead = kWeightPrefetchBytes;
  Fetch fetch = Fetch::kAhead;  // only the first tile finds the weights in memory, the others in the cache
  const size_t group_bytes = static_cast<size_t>(panels) * lin.panel_bytes(kPerWord<T>);
  const int tiles = ceil_div(row_end - row_begin, kTileRows);
  // Spread over all tiles but the first: so many lines for each word of k.
  const int lines = tiles < 2 || !upcoming ? 0 : ceil_div(static_cast<int>(group_bytes / 64), (tiles - 1) * lin.words);
  const Fetch later = lines == 0 ? Fetch::kNone : lines == 1 ? Fetch::kLines1 : lines == 2 ? Fetch::kLines2 : Fetch::kLines4;
  const size_t slice = static_cast<size_t>(lin.words) * 64;
  constexpr size_t kResultStride = kTileVecs * kLanes;
  alignas(64) float result[kTileRows * kResultStride];
  for (int row = row_begin; row < row_end; row += kTileRows, fetch = later) {
    const int rows = std::min(kTileRows, row_end - row);
    for (int r = 0; r < rows; ++r) tile.row[r] = x + static_cast<size_t>(row + r) * x_words;
    if (lines > 0 && fetch == later) {
      const int done = ((row - row_begin) / kTileRows - 1) * fetched_lines(later);
      for (int i = 0; i < kTileVecs; ++i) tile.fetch[i] = upcoming + slice * static_cast<size_t>(done + i);
    }
    if (widen_on_the_fly)
      run_tile<T, int8_t>(tile, rows, panels * kPanelVecs, fetch, result, kResultStride);
    else
      run_tile<T, T>(tile, rows, panels * kPanelVecs, fetch, result, kResultStride);
    for (int p = 0; p < panels; ++p)
      finish_panel(lin, row, rows, panel0 + p, result + p * kPanelColumns, kResultStride, out);
  }
}

#if WB_AMX
// The same on the matrix unit.
template <class Out>
void matrix_block(const Linear& lin, const uint32_t* x, size_t x_words, int row_begin, int row_end, int panel0, int panels,
                  char* widened, const Out& out) {
  load_shapes(linear_shapes());
  alignas(64) float result[kPairRows * kPanelColumns];
  const bool widen_once = lin.int8 && row_end - row_begin > kPairRows;
  for (int p = panel0; p < panel0 + panels; ++p) {
    const char* panel = lin.data.as<char>() + static_cast<size_t>(p) * lin.panel_bytes(kPerWord<bf16>);
    if (widen_once) {
      widen_panels<bf16>(panel, lin.words * kPanelVecs, widened);
      panel = widened;
    }
    for (int row = row_begin; row < row_end; row += kPairRows) {
      const int rows = std::min(kPairRows, row_end - row);
      const size_t ahead = row == row_begin && !widen_once ? kWeightPrefetchBytes : 0;
      run_panel(x + static_cast<size_t>(row) * x_words, x_words, rows, panel, lin.int8 && !widen_once, ahead, widened, result,
                kPanelColumns);
      finish_panel(lin, row, rows, p, result, kPanelColumns, out);
    }
  }
}
#endif

constexpr int kPanelsPerTile = kTileVecs / kPanelVecs;

// Rows of one unit of work.
template <class T>
int rows_of_unit(int m, int groups, size_t x_words, int threads) {
  if (m <= kManyRows) return m;
  if (!kMatrixUnit<T>) return kRowBlock;
  const int blocks = std::max(static_cast<int>(static_cast<size_t>(m) * x_words * 4 / kBlockBytes) + 1,
                              ceil_div(kUnitsPerThread * threads, groups));
  return std::max(kManyRows, round_up(ceil_div(m, blocks), kPairRows));
}

// y = x . W^T over `m` rows, shared by the team. `rows()` gives x (packed words, `x_words` a row); it is called by threads
// that take a unit, so a thread may prepare a private copy in it. Few rows: a unit is a run of panels, one stream of weights.
// Many rows: a unit is the panels of one tile and a block of rows. The vector kernels go through the rows of one tile's panels
// before the next; the matrix unit through all panels of one block of rows: it is so fast that reading rows anew would count.
template <class T, class Rows, class Out>
void run_linear(const Linear& lin, Rows&& rows, size_t x_words, int m, int threads, Stage& stage, char* widened,
                const Out& out) {
  const int groups = ceil_div(lin.panels, kPanelsPerTile);
  const int row_block = rows_of_unit<T>(m, groups, x_words, threads);
  const int row_blocks = ceil_div(m, row_block);
  const int run = row_blocks > 1 ? 1 : std::max(1, groups / (kUnitsPerThread * threads));
  const int runs = ceil_div(groups, run);
  const uint32_t* x = nullptr;
  stage.run(runs * row_blocks, [&](int unit) {
    if (!x) x = rows();
#if WB_AMX
    if constexpr (kMatrixUnit<T>) {
      const int panel = unit % runs * run * kPanelsPerTile, row = unit / runs * row_block;
      return matrix_block(lin, x, x_words, row, std::min(m, row + row_block), panel,
                          std::min(run * kPanelsPerTile, lin.panels - panel), widened, out);
    }
#endif
    const int first = unit / row_blocks * run, row = unit % row_blocks * row_block;
    const int last = std::min(groups, first + run) - 1;
    for (int group = first; group <= last; ++group) {
      const int panel = group * kPanelsPerTile;
      // Behind the run: the one that this thread gets if the others take one each meanwhile.
      const int next = group < last ? group + 1 : group + 1 + (threads - 1) * run;
      const char* upcoming = row_blocks > 1 || next >= groups ? nullptr
          : lin.data.as<char>() + static_cast<size_t>(next * kPanelsPerTile) * lin.panel_bytes(kPerWord<T>);
      linear_block<T>(lin, x, x_words, row, std::min(m, row + row_block), panel,
                      std::min(kPanelsPerTile, lin.panels - panel), upcoming, widened, out);
    }
  });
}

}  // namespace wb
