// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A chain of layers that a group shares, as a table and as a picture.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/partition/split_plan.hpp>
#include <stagger/report/detail/svg_document.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/svg_options.hpp>
#include <stagger/report/table.hpp>

namespace stagger::report {

[[nodiscard]] constexpr char const* name(partition::GroupExchange exchange) noexcept {
  constexpr char const* names[] = {"", "modulo", "fan", "shard", "collect", "sum", "total"};
  return names[static_cast<std::size_t>(exchange)];
}
[[nodiscard]] constexpr char const* name(SplitBy by) noexcept {
  constexpr char const* names[] = {"-", "outputs", "inputs", "hidden"};
  return names[static_cast<std::size_t>(by)];
}

namespace detail {

/// Whether layers have run, so that the bytes of their outputs are known.
[[nodiscard]] inline bool has_bytes(std::span<partition::LayerFeatures const> layers) {
  return std::any_of(layers.begin(), layers.end(),
                     [](partition::LayerFeatures const& layer) { return layer.row_bytes != 0; });
}
/// What a member has of a layer's output: bytes if they are known, otherwise elements.
[[nodiscard]] inline std::size_t activations(partition::SplitChain const& chain, std::size_t layer,
                                             int member, std::size_t rows) {
  auto const count =
      has_bytes(chain.layers) ? partition::activation_bytes_of : partition::activations_of;
  return count(chain.plan, chain.layers, layer, member, rows);
}

}  // namespace detail

/// A table with a line for each layer: its exchange, its parameters and its activations for one
/// member, these in bytes if they are known, and otherwise in elements. Below the table are the
/// names of layers that are not split although a group was requested.
/// @param rows    of each member in a local batch
/// @throws Error  mismatch unless there are as many layers as the plan has
[[nodiscard]] inline std::string table(partition::SplitChain const& chain, int member,
                                       std::size_t rows) {
  using namespace partition;
  auto const& [plan, layers, numbers] = chain;
  (void)parameters_of(plan, layers, member);  // refuses layers of another chain
  bool const bytes = detail::has_bytes(layers);
  TextTable lines({"layer", "exchange", "forward: sent", "received", "backward: sent", "received",
                   "features", "split by", "operations/element", "parameters",
                   bytes ? "activation bytes" : "activations"});
  auto const count = [](std::size_t number) {
    return number == 0 ? std::string("-") : std::to_string(number);
  };
  for (std::size_t l = 0; l <= plan.layers.size(); ++l) {
    Elements const sent = elements_sent(plan, l, member, rows);
    Elements const received = elements_received(plan, l, member, rows);
    if (l == plan.layers.size()) {
      lines.add({"loss", name(plan.end), count(sent.forward), count(received.forward),
                 count(sent.backward), count(received.backward)});
      break;
    }
    LayerFeatures const& layer = layers[l];
    PlannedLayer const& planned = plan.layers[l];
    bool const known = layer.inputs != 0;
    lines.add({std::to_string(chain.number(l)), name(planned.exchange), count(sent.forward),
               count(received.forward), count(sent.backward), count(received.backward),
               known ? text(layer.inputs, " -> ", layer.outputs) : count(planned.features),
               name(planned.by), known ? format_fixed(operations_per_element(layer), 1) : "-",
               count(parameters_of(planned, layer, member, plan.members)),
               count(detail::activations(chain, l, member, rows))});
  }
  std::string notes;
  for (std::size_t l = 0; l < plan.layers.size(); ++l)
    if (plan.layers[l].too_narrow)
      notes += text("layer ", chain.number(l), " stays whole: it has ",
                    layers[l].hidden != 0 ? counted(layers[l].hidden, "hidden part")
                                          : counted(layers[l].outputs, "output"),
                    " for ", counted(plan.members, "member"), "\n");
  std::string unknown;
  for (std::size_t l = 0; l < plan.layers.size(); ++l)
    if (!bytes && activations_of(plan, layers, l, member, 1) == 0)
      unknown += text(unknown.empty() ? "" : ", ", chain.number(l));
  if (plan.members > 1 && !plan.splits())
    notes += "no layer is worth sharing: each rank has the whole model, for rows of its own\n";
  if (!unknown.empty())
    notes += text(
        "activations of these layers are known only when they run, since they have no "
        "outputs(): ",
        unknown, "; describe(train, input) runs them\n");
  return lines.str() + notes;
}

namespace detail {

/// Draws a chain from top to bottom: a lane for the whole of it, and one for each member.
class SplitPlanWriter {
 public:
  SplitPlanWriter(partition::SplitChain const& chain, std::size_t rows, SvgOptions const& options)
      : chain_(chain), rows_(rows), options_(options) {
    lanes_ = std::min(plan_.members, most_members);
    int const least = left + (lanes_ + 1) * least_lane + right;
    if (options.width < least)
      raise(Errc::bad_configuration, "a picture of ", counted(plan_.members, "member"), " has ",
            options.width, " pixels; use a width of at least ", least);
    lane_ = (options.width - left - right) / (lanes_ + 1);
  }

  [[nodiscard]] std::string document() {
    std::string body;
    int y = 16;
    if (!options_.title.empty()) {
      body += svg_text(16, 28, "title", options_.title);
      y += 24;
    }
    body += svg_text(left + lane_ / 2, y + 12, "c", "one rank");
    for (int m = 0; m < lanes_; ++m)
      body += svg_text(middle(m), y + 12, "c", text("member ", m, " of ", plan_.members));
    y += 22;
    for (std::size_t l = 0; l <= plan_.layers.size(); ++l) {
      if (plan_.exchange(l) != partition::GroupExchange::none) {
        body += exchange(l, y);
        y += exchange_height + gap;
      }
      if (l == plan_.layers.size()) break;
      body += layer(l, y);
      y += layer_height + gap;
    }
    body += svg_text(16, y + 14, "small weak",
                     text("In a box: features; parameters, ",
                          has_bytes(layers_) ? "bytes of activations" : "activations",
                          ". Between boxes: numbers sent, received, for ", counted(rows_, "row"),
                          " of each member."));
    return svg_document(options_.width, y + 26,
                        options_.title.empty() ? "layers of a group" : options_.title, styles(),
                        body);
  }

 private:
  static constexpr int most_members = 8;
  static constexpr int left = 74;
  static constexpr int right = 12;
  static constexpr int least_lane = 90;
  static constexpr int layer_height = 34;
  static constexpr int exchange_height = 32;
  static constexpr int gap = 4;

  [[nodiscard]] std::string styles() const {
    return themed(options_.theme,
                  ".title{font-size:15px;font-weight:600}text{font-size:12px}.small{font-size:11px}"
                  ".c{text-anchor:middle}.box text{fill:#10182a}.rows{fill:#9cc9e8}"
                  ".whole{fill:#c9ced6}.columns{fill:#a5dbc0}.cut{fill:#f2b27f}");
  }
  [[nodiscard]] int middle(int member) const { return left + lane_ * (member + 1) + lane_ / 2; }
  [[nodiscard]] static std::string number(std::size_t count) {
    return count == 0 ? "-" : format_count(static_cast<double>(count));
  }
  /// A box with two lines of text.
  [[nodiscard]] std::string box(int lane, int y, int height, char const* style,
                                std::string const& above, std::string const& below) const {
    int const x = left + lane * lane_;
    return text("<rect class=\"", style, "\" x=\"", x, "\" y=\"", y, "\" width=\"", lane_ - gap,
                "\" height=\"", height, "\" rx=\"3\"/>",
                svg_text(x + lane_ / 2, y + 14, "c", above),
                svg_text(x + lane_ / 2, y + 28, "c small", below));
  }

  [[nodiscard]] std::string layer(std::size_t l, int y) const {
    partition::LayerFeatures const& layer = layers_[l];
    partition::PlannedLayer const& planned = plan_.layers[l];
    std::size_t const all = layer.values != 0 ? layer.values : planned.features;
    auto const features = [](std::size_t in, std::size_t out) {
      return in != 0 ? text(in, " -> ", out) : out != 0 ? std::to_string(out) : std::string("-");
    };
    std::string out = svg_text(16, y + 20, "small", text("layer ", chain_.number(l))) +
                      "<g class=\"box\">" +
                      box(0, y, layer_height, "whole",
                          features(layer.inputs, layer.inputs != 0 ? layer.outputs : all),
                          number(layer.parameters) + ", " +
                              number(rows_ * (has_bytes(layers_) ? layer.row_bytes : all)));
    for (int m = 0; m < lanes_; ++m) {
      auto const part = [&](bool is, std::size_t whole) {
        return is ? features_of(m, plan_.members, whole).size() : whole;
      };
      bool const own_rows = planned.takes == partition::Held::rows;
      bool const shared =
          planned.by != SplitBy::nothing || planned.gives == partition::Held::columns;
      bool const columns = planned.gives == partition::Held::columns;
      out += box(m + 1, y, layer_height,
                 own_rows ? "rows"
                 : shared ? "columns"
                          : "whole",
                 features(part(planned.by == SplitBy::inputs, layer.inputs),
                          part(columns, layer.inputs != 0 ? layer.outputs : all)),
                 number(parameters_of(planned, layer, m, plan_.members)) + ", " +
                     number(activations(chain_, l, m, rows_)));
    }
    return out + "</g>\n";
  }

  [[nodiscard]] std::string exchange(std::size_t l, int y) const {
    std::string out = svg_text(16, y + 19, "small", name(plan_.exchange(l))) + "<g class=\"box\">";
    for (int m = 0; m < lanes_; ++m) {
      auto const sent = partition::elements_sent(plan_, l, m, rows_);
      auto const received = partition::elements_received(plan_, l, m, rows_);
      out += box(m + 1, y, exchange_height, "cut",
                 "forward " + number(sent.forward) + ", " + number(received.forward),
                 "backward " + number(sent.backward) + ", " + number(received.backward));
    }
    return out + "</g>\n";
  }

  partition::SplitChain const& chain_;
  partition::SplitPlan const& plan_ = chain_.plan;
  std::vector<partition::LayerFeatures> const& layers_ = chain_.layers;
  std::size_t rows_;
  SvgOptions const& options_;
  int lanes_ = 1;  // of members
  int lane_ = 0;   // in pixels
};

}  // namespace detail

/// Draws a chain before and after it is split: what one rank has of each layer, what each member of
/// a group has, and what a member sends and receives between layers, as an SVG document. Blue: a
/// member's own rows; green: a part for all rows of the group; grey: the whole layer; orange: an
/// exchange. Of more than eight members, the first eight are drawn.
/// @param rows    of each member in a local batch
/// @return        the same bytes for the same input, in every locale
/// @throws Error  mismatch unless there are as many layers as the plan has, bad_configuration for a
///                width in which the members have no room
[[nodiscard]] inline std::string svg(partition::SplitChain const& chain, std::size_t rows,
                                     SvgOptions const& options = {}) {
  (void)partition::parameters_of(chain.plan, chain.layers, 0);  // refuses layers of another chain
  return detail::SplitPlanWriter(chain, rows, options).document();
}

}  // namespace stagger::report
