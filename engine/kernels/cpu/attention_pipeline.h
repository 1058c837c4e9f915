// PagedAttention's way through the passes of one unit on the matrix unit.
#pragma once

#include "attention.h"

namespace wb {

#if WB_AMX

// `attend` for units of several passes on the matrix unit. Three passes are under way: one's scores and another's outputs are
// computed by the matrix unit while the vector unit does the exponentials of the one between. What is computed stays the same.
template <class T>
void PagedAttention<T>::attend_pipelined(const AttentionUnit& unit, const AttentionUnit& next, const AttentionBatch& batch,
                                         const char* layer, float* partials, const Scratch& s) const {
  struct Pass {
    int tile, row, rows, subs;
    bool first;  // of its tile: it meets memory that is not in the cache yet
  };
  const int rows = unit.tokens * group_;
  const int limit = visible_to(unit, batch), first_position = limit - unit.tokens;
  AttentionTile tiles[4];
  const auto tile_of = [&](const Pass& pass, int ahead = 0) -> AttentionTile& { return tiles[(pass.tile + ahead) & 3]; };
  locate(g_, unit, unit.tile_begin, batch, layer, tiles[unit.tile_begin & 3]);
  Pass coming{unit.tile_begin, 0, 0, 0, true};
  const auto advance = [&](Pass& pass) {
    for (; coming.tile < unit.tile_end; ++coming.tile, coming.row = 0, coming.first = true) {
      if (coming.row == 0) {
        const bool last = coming.tile + 1 == unit.tile_end;
        locate(g_, last ? next : unit, last ? next.tile_begin : coming.tile + 1, batch, layer, tile_of(coming, 1));
      }
      while (coming.row < rows) {
        pass = coming;
        pass.rows = std::min(kPassRows, rows - pass.row);
        const int visible = first_position + (pass.row + pass.rows - 1) / group_ + 1;  // to the last row
        pass.subs = std::min(tile_of(pass).count, g_.touched(visible) - pass.tile * kTileSubBlocks);
        coming.row += kPassRows;
        if (pass.subs <= 0) continue;
        coming.first = false;
        return true;
      }
    }
    return false;
  };
  Pass passes[3];
  int passes_known = 0;
  bool more = true;
  for (int round = 0; more || round - 2 < passes_known; ++round) {
    if (more) passes_known += more = advance(passes[round % 3]);
    const auto pass_of = [&](int i) { return i >= 0 && i < passes_known ? &passes[i % 3] : nullptr; };
    const Pass *scored = pass_of(round), *between = pass_of(round - 1), *weighed = pass_of(round - 2);
    const auto values_of = [&](const Pass& pass) { return s.values + (pass.tile & 1) * kTileSubBlocks * g_.value_bytes; };
    const int slot = round & 1;  // of the first and the last of the three
    PassScores to_score{};
    PassValues to_weigh{};
    MatrixSoftmax softmax{};
    if (scored) {
      const AttentionTile& t = tile_of(*scored);
      to_score = {s.query + static_cast<size_t>(scored->row) * query_words_, t.keys, scored->subs,
                  {scored->first ? t.values : nullptr, g_.value_bytes},
                  s.scores + slot * kPassRows * kTileTokens};
    }
    if (weighed)
      to_weigh = {s.weights + slot * kPassRows * kTileTokens / kPerWord<T>, values_of(*weighed), weighed->subs,
                  {weighed->first ? tile_of(*weighed, 1).keys : nullptr, g_.key_bytes}, s.tile_out};
    if (between) {
      const AttentionTile& t = tile_of(*between);
      if (between->first) gather_values<T>(g_, t, limit, values_of(*between));
      softmax = unit_softmax(first_position, between->row, between->subs, t, 1 - slot, s);
      softmax.find_max(0);
    }
    const int rows_between = between ? between->rows : 0;
    matrix_pass(g_.dim_words, g_.dim_padded, scored ? &to_score : nullptr, weighed ? &to_weigh : nullptr, rows_between,
                [&](int r) {
                  if (r + 1 < rows_between) softmax.find_max(r + 1);
                  softmax.weigh(r);
                });
    if (weighed)
      keep_pass(unit, weighed->tile, weighed->row, weighed->rows, s.tile_max + slot * kPassRows,
                s.tile_sum + slot * kPassRows, partials, s);
  }
}

#endif

}  // namespace wb
