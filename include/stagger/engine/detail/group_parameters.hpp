// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The parameters of layers that groups of ranks share, as the caller sees them: whole.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/grouped.hpp>
#include <stagger/engine/detail/model_state.hpp>
#include <stagger/parameters/layer_parameters.hpp>
#include <stagger/parameters/parameter_memory.hpp>

namespace stagger::detail {

/// Parameters of which members have pieces, as the whole that the caller sees. Over processes, only
/// some members' parts are here.
struct GroupParameters {
  using Whole = Grouped::Whole;

  /// Refuses parts whose parameters are not pieces of whole ones.
  [[gnu::cold]] static void require_pieces(ModelState const& model) {
    for (Whole const& of : model.grouped->wholes) {
      if (!of.split) continue;
      auto const& first = model.parameters[of.first];
      for (int m = 1; m < of.members; ++m) {
        auto const& part = model.parameters[of.of(m)];
        bool same = part.count() == first.count();
        for (std::size_t p = 0; same && p < part.count(); ++p)
          same = part.declaration(p).name == first.declaration(p).name &&
                 part.declaration(p).type == first.declaration(p).type;
        if (!same)
          raise(Errc::bad_configuration, "the parts of layer ", first.number(),
                " have different parameters; let parameters() list the same ones for every part");
      }
      for (std::size_t p = 0; p < first.count(); ++p) {
        std::size_t const whole = first.declaration(p).piece.whole;
        std::size_t sum = 0;
        for (int m = 0; m < of.members; ++m) sum += model.parameters[of.of(m)].declaration(p).size;
        if (whole == 0 || sum != whole || !disjoint(model, of, p))
          raise(Errc::bad_configuration, "the parameter '", first.declaration(p).name,
                "' of layer ", first.number(), " has ", sum, " elements in the parts of ",
                counted(of.members, "member"), " and ", whole,
                " in the whole; let part() give each member a Parameter::piece of it, and each "
                "element to one of them");
      }
    }
  }

  /// A call that follows another uses its memory again, so that what both return stays valid until
  /// the next step.
  [[gnu::cold]] static void append_states(ModelState& model, std::vector<ParameterState>& states,
                                          bool own) {
    if (model.memory == nullptr) write_back(model);  // otherwise the machine has taken all back
    std::size_t pieces = 0;
    for (Whole const& of : model.grouped->wholes)
      if (of.split) pieces += model.parameters[of.first].count();
    if (model.shown_wholes.size() != pieces) model.shown_wholes = FixedArray<ShownWhole>(pieces);
    std::size_t next = 0;
    for (Whole const& of : model.grouped->wholes) {
      int const here = first_here(model, of);
      auto& layer = model.parameters[of.of(here < 0 ? 0 : here)];
      std::size_t const first = states.size();
      if (own && here < 0) {
        layer.append_own(states);
        next += of.split ? layer.count() : 0;
        continue;
      }
      layer.append_states(states);
      std::vector<ParameterState> others;
      for (int m = 0; m < of.members; ++m)
        if (auto& part = model.parameters[of.of(m)];
            &part != &layer && (part.present() || (of.split && !own)))
          part.append_states(others);
      for (std::size_t p = 0; of.split && first + p < states.size(); ++p) {
        ShownWhole& whole = model.shown_wholes[next++];
        whole.of = of;
        whole.parameter = p;
        ParameterState& state = states[first + p];
        for (std::size_t b = 0; b <= static_cast<std::size_t>(model.optimizer.states); ++b) {
          auto& memory = b == 0 ? state.value : state.state[b - 1];
          std::size_t const bytes = whole_bytes(layer, p);
          if (whole.blocks[b].size() != bytes) whole.blocks[b].make(nullptr, bytes);
          memory = whole.blocks[b].span();
        }
        copy(model, whole, false);
      }
    }
  }

  [[gnu::cold]] static void put_back(ModelState& model) {
    write_back(model);
    if (model.memory == nullptr) model.shown_wholes = {};  // of a device, copies stay
  }

  [[gnu::cold]] static List<ParameterShape> shapes(ModelState const& model) {
    List<ParameterShape> shapes;
    for (Whole const& of : model.grouped->wholes) {
      auto const& layer = model.parameters[of.first];
      for (std::size_t p = 0; p < layer.count(); ++p) {
        shapes.push_back(layer.shape(p));
        if (!of.split) continue;
        shapes.back().bytes = whole_bytes(layer, p);
        if (shapes.back().rows != 0) shapes.back().rows = {};  // a piece may have others
      }
    }
    return shapes;
  }

 private:
  /// Whether no element of a parameter is in the pieces of two members.
  [[gnu::cold]] static bool disjoint(ModelState const& model, Whole const& of, std::size_t p) {
    std::vector<std::pair<std::size_t, std::size_t>> runs;  // first element, and the one after it
    for (int m = 0; m < of.members; ++m) {
      ParameterPiece const& piece = model.parameters[of.of(m)].declaration(p).piece;
      for (std::size_t r = 0; r < piece.runs && piece.length != 0; ++r)
        runs.emplace_back(piece.first + r * piece.stride,
                          piece.first + r * piece.stride + piece.length);
    }
    std::sort(runs.begin(), runs.end());
    for (std::size_t r = 1; r < runs.size(); ++r)
      if (runs[r].first < runs[r - 1].second) return false;
    return true;
  }

  /// What the caller may have written goes to the members.
  [[gnu::cold]] static void write_back(ModelState& model) {
    for (ShownWhole& whole : model.shown_wholes) copy(model, whole, true);
    for (Whole const& of : model.grouped->wholes) {
      int const here = of.split ? -1 : first_here(model, of);
      for (int m = here + 1; here >= 0 && m < of.members; ++m) {
        auto const from = model.parameters[of.of(here)].shown_blocks();
        auto const to = model.parameters[of.of(m)].shown_blocks();
        for (std::size_t b = 0; b < from.size(); ++b)
          if (!from[b].empty() && from[b].size() == to[b].size())
            std::memcpy(to[b].data(), from[b].data(), from[b].size());
      }
    }
  }

  static std::size_t whole_bytes(LayerParameters const& part, std::size_t p) {
    auto const& declaration = part.declaration(p);
    return declaration.piece.whole * element_bytes(declaration.type);
  }

  /// The first member whose part or copy is here; -1: none.
  static int first_here(ModelState const& model, Whole const& of) {
    for (int m = 0; m < of.members; ++m)
      if (model.parameters[of.of(m)].present()) return m;
    return -1;
  }

  /// @param back  from the whole to the pieces
  [[gnu::cold]] static void copy(ModelState& model, ShownWhole& whole, bool back) {
    for (int m = 0; m < whole.of.members; ++m) {
      auto const& part = model.parameters[whole.of.of(m)];
      auto const blocks = part.shown_blocks();
      for (std::size_t b = 0; b < blocks.size(); ++b)
        if (whole.blocks[b].size() != 0 && !blocks[b].empty())
          part.copy_piece(whole.parameter, blocks[b].data() + part.range(whole.parameter).first,
                          whole.blocks[b].data(), back);
    }
  }
};

}  // namespace stagger::detail
