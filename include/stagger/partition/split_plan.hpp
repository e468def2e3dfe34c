// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The plan of layers that a group of ranks shares, each with a part, and of what its
///         members exchange.
/// @source Y. Lai, A. Kadav, E. Kruus, "SplitBrain: Hybrid Data and Model Parallel Deep Learning",
///         2021, listing 1. Splitting by inputs behind a split by outputs: M. Shoeybi et al.,
///         "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
///         2019, section 3.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/model/split.hpp>

namespace stagger::partition {

/// The properties of a layer that decide whether and how it is split.
struct LayerFeatures {
  std::size_t inputs = 0;   ///< features of a row of its input; 0: it cannot be split
  std::size_t outputs = 0;  ///< likewise
  bool element_wise = false;
  bool by_inputs = false;      ///< whether it can be split by inputs, too
  std::size_t parameters = 0;  ///< numbers
  std::size_t biases = 0;      ///< those of them that are added only once
  std::size_t values = 0;      ///< numbers of a row of its output; 0: as many as features
  std::size_t row_bytes = 0;   ///< bytes of a row of its output; 0: not known yet
  std::size_t hidden = 0;      ///< what can be shared out between input and output; 0: nothing
  std::size_t operations = 0;  ///< then its multiplications for a row, forward
};

/// What decides which layers are split.
struct SplitRules {
  int group = 1;           ///< members, >= 1
  double threshold = 225;  ///< operations per element that would be communicated, above which
                           ///< splitting pays: operations/s of a rank over elements/s of its link
  bool pairs = false;  ///< a layer behind one that is split by outputs is split by inputs, if it
                       ///< can be
};

/// Operations per communicated element of a split layer, forward and backward together: 3 in out /
/// (in + out) unless the layer says how many operations it has. It does not depend on the batch and
/// the group.
[[nodiscard]] constexpr double operations_per_element(LayerFeatures const& layer) noexcept {
  auto const in = static_cast<double>(layer.inputs);
  auto const out = static_cast<double>(layer.outputs);
  return 3 * (layer.hidden == 0 ? in * out : static_cast<double>(layer.operations)) / (in + out);
}

/// Whether to split a layer pays, if it can be split at all.
[[nodiscard]] constexpr bool worth_splitting(LayerFeatures const& layer,
                                             SplitRules const& rules) noexcept {
  return layer.inputs != 0 && layer.outputs != 0 && operations_per_element(layer) > rules.threshold;
}

/// The part of a value between two layers that a member of a group has.
enum class Held : std::uint8_t {
  rows,     ///< its share of the rows, as with replicas
  whole,    ///< all rows of its group
  columns,  ///< some features of all rows of its group
  terms,    ///< a summand of the value for all rows of its group
};

/// What members exchange between two layers.
enum class GroupExchange : std::uint8_t {
  none,
  modulo,   ///< forward all rows of the group; backward its rows' gradients, added
  fan,      ///< backward the gradient, added
  shard,    ///< forward all columns; backward its columns' gradients, added
  collect,  ///< forward all columns; backward nothing
  sum,      ///< forward the sum of the terms; backward the gradient, added
  total,    ///< forward the sum of the terms; backward nothing
};

/// The exchange between a layer and the next one, or the loss.
/// @param partial  as of PlannedLayer
/// @pre            the exchange exists: columns are only taken from columns
[[nodiscard]] constexpr GroupExchange exchange_between(Held given, Held taken,
                                                       bool partial) noexcept {
  if (taken == Held::rows || taken == Held::columns) return GroupExchange::none;
  switch (given) {
    case Held::rows:
      return GroupExchange::modulo;
    case Held::whole:
      return partial ? GroupExchange::fan : GroupExchange::none;
    case Held::columns:
      return partial ? GroupExchange::shard : GroupExchange::collect;
    default:
      return partial ? GroupExchange::sum : GroupExchange::total;
  }
}

/// One layer of a chain.
struct PlannedLayer {
  SplitBy by = SplitBy::nothing;
  Held takes = Held::rows;
  Held gives = Held::rows;
  GroupExchange exchange = GroupExchange::none;  ///< in front of it
  std::size_t arriving = 0;  ///< features of a row there, of all members; 0: unknown
  std::size_t features = 0;  ///< features of a row of the layer's output
  bool too_narrow = false;   ///< it would be split, but has fewer outputs than there are members

  /// Whether the members' gradients of what it takes are terms.
  [[nodiscard]] constexpr bool partial() const noexcept {
    return by == SplitBy::outputs || by == SplitBy::hidden;
  }
};

/// When the layers from the first one that is split on are updated.
enum class Update {
  accumulate,  ///< at the end of a step, with all others: a step is that of one device
  each_pass,   ///< after the backward of each microbatch, with what it adds to the step's gradient;
               ///< the layers before them at the end of the step. As published
};

/// A chain of layers as a group of `members` ranks runs it.
struct SplitPlan {
  int members = 1;
  std::vector<PlannedLayer> layers{};
  GroupExchange end = GroupExchange::none;  ///< between the last layer and the loss
  /// The first layer that is split, or would be in a larger group; if none is, how many there are.
  std::size_t first = 0;

  /// Whether any layer is split.
  [[nodiscard]] constexpr bool splits() const noexcept {
    return !layers.empty() && layers.back().takes != Held::rows;
  }
  /// The cut in front of a layer; for the number after the last layer, the one in front of the
  /// loss.
  [[nodiscard]] constexpr GroupExchange exchange(std::size_t layer) const noexcept {
    return layer < layers.size() ? layers[layer].exchange : end;
  }
  /// The features of a row at that cut, of all members.
  [[nodiscard]] constexpr std::size_t width(std::size_t layer) const noexcept {
    return layer < layers.size() ? layers[layer].arriving : layers.back().features;
  }
  /// Whether each member adds up its share of the features there, and all collect the sums: a
  /// reduce-scatter and an all-gather. Two members fetch each other's terms, which is as much.
  [[nodiscard]] constexpr bool adds_in_shares(std::size_t layer) const noexcept {
    GroupExchange const here = exchange(layer);
    return members > 2 && std::cmp_greater_equal(width(layer), members) &&
           (here == GroupExchange::fan || here == GroupExchange::sum ||
            here == GroupExchange::total);
  }
};

/// A chain of layers with its plan, for tables and pictures.
struct SplitChain {
  SplitPlan plan{};
  std::vector<LayerFeatures> layers{};
  std::vector<int> numbers{};  ///< [layers] of the model; empty: 0, 1, 2 and so on

  [[nodiscard]] int number(std::size_t layer) const noexcept {
    return layer < numbers.size() ? numbers[layer] : static_cast<int>(layer);
  }
};

/// Decides which layers of a chain a group shares. Before the first of them a rank works on its own
/// rows, after it on those of its group. In front of the first layer nothing is exchanged, since
/// every rank has the whole batch.
/// @param numbers  as of SplitChain, for messages
/// @throws Error  bad_configuration for a group below 1 or a threshold that is no number of at
///                least 0, mismatch for a layer whose inputs are not the previous layer's outputs
[[nodiscard]] constexpr SplitPlan plan_split(std::span<LayerFeatures const> layers,
                                             SplitRules const& rules,
                                             std::span<int const> numbers = {}) {
  if (rules.group < 1)
    raise(Errc::bad_configuration, "a group of ", counted(rules.group, "rank"),
          " cannot share layers; use at least 1");
  if (!(rules.threshold >= 0))
    raise(Errc::bad_configuration, "a threshold of ", rules.threshold,
          " operations for each element does not tell which layers to split; use 0 or more");
  auto const members = static_cast<std::size_t>(rules.group);
  SplitPlan plan{.members = rules.group};
  Held held = Held::rows;
  std::size_t features = 0;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    LayerFeatures const& layer = layers[l];
    bool const known = layer.inputs != 0 && layer.outputs != 0;
    if (known && features != 0 && layer.inputs != features)
      raise(Errc::mismatch, "layer ", l < numbers.size() ? numbers[l] : static_cast<int>(l),
            " takes ", counted(layer.inputs, "feature"), ", but ", features,
            " arrive; let its inputs() be the outputs() of the layer before it");
    bool const pays = members > 1 && worth_splitting(layer, rules);
    PlannedLayer planned;
    planned.arriving = known ? layer.inputs : features;
    if (pays && layer.hidden != 0)
      planned.by = layer.hidden >= members ? SplitBy::hidden : SplitBy::nothing;
    else if (pays && rules.pairs && held == Held::columns && layer.by_inputs &&
             layer.inputs >= members)
      planned.by = SplitBy::inputs;
    else if (pays && layer.outputs >= members)
      planned.by = SplitBy::outputs;
    planned.too_narrow = pays && planned.by == SplitBy::nothing;
    if (planned.by == SplitBy::inputs)
      planned.takes = Held::columns;
    else if (held == Held::rows)
      planned.takes = planned.partial() ? Held::whole : Held::rows;
    else
      planned.takes = layer.element_wise && held == Held::columns ? held : Held::whole;
    if (l != 0) planned.exchange = exchange_between(held, planned.takes, planned.partial());
    planned.gives = planned.by == SplitBy::nothing   ? planned.takes
                    : planned.by == SplitBy::outputs ? Held::columns
                                                     : Held::terms;
    features = known ? layer.outputs : layer.element_wise ? features : 0;
    planned.features = features;
    held = planned.gives;
    plan.layers.push_back(planned);
    bool const shared = members > 1 ? held != Held::rows : worth_splitting(layer, rules);
    if (plan.first == l && !shared) ++plan.first;
  }
  plan.end = exchange_between(held, held == Held::rows ? held : Held::whole, false);
  return plan;
}

/// Elements that one member sends or receives, forward and backward.
struct Elements {
  std::size_t forward = 0;
  std::size_t backward = 0;
};

/// The elements that a member sends at the cut in front of a layer.
/// @param layer  as for SplitPlan::exchange
/// @param rows   rows of each member; its group has members times as many
[[nodiscard]] constexpr Elements elements_sent(SplitPlan const& plan, std::size_t layer, int member,
                                               std::size_t rows) noexcept {
  auto const members = static_cast<std::size_t>(plan.members);
  std::size_t const others = members - 1;
  std::size_t const width = plan.width(layer);
  std::size_t const own = features_of(member, plan.members, width).size();
  // If members add in shares, each sends every other member that member's share of the terms, then
  // its own summed share to all; otherwise it sends all its terms to every other member.
  std::size_t const added =
      members * rows * (plan.adds_in_shares(layer) ? width - own + others * own : others * width);
  switch (plan.exchange(layer)) {
    case GroupExchange::modulo:
      return {others * rows * width, others * rows * width};
    case GroupExchange::fan:
      return {0, added};
    case GroupExchange::shard:
      return {others * members * rows * own, members * rows * (width - own)};
    case GroupExchange::collect:
      return {others * members * rows * own, 0};
    case GroupExchange::sum:
      return {added, added};
    case GroupExchange::total:
      return {added, 0};
    default:
      return {};
  }
}

/// The elements that a member receives at that cut.
[[nodiscard]] constexpr Elements elements_received(SplitPlan const& plan, std::size_t layer,
                                                   int member, std::size_t rows) noexcept {
  Elements const sent = elements_sent(plan, layer, member, rows);
  GroupExchange const here = plan.exchange(layer);
  if (here == GroupExchange::shard) return {sent.backward, sent.forward};
  if (here != GroupExchange::collect) return sent;
  std::size_t const width = plan.width(layer);
  std::size_t const own = features_of(member, plan.members, width).size();
  return {static_cast<std::size_t>(plan.members) * rows * (width - own), 0};
}

/// How much of a layer's output a member has, for the rows of its group.
/// @param layer  in the plan
/// @param rows   of each member
/// @param row    how much a row of the whole output is, in elements or bytes
[[nodiscard]] constexpr std::size_t share_of_output(SplitPlan const& plan, std::size_t layer,
                                                    int member, std::size_t rows,
                                                    std::size_t row) noexcept {
  PlannedLayer const& planned = plan.layers[layer];
  if (planned.gives == Held::rows) return rows * row;
  std::size_t const all = static_cast<std::size_t>(plan.members) * rows;
  if (planned.gives != Held::columns) return all * row;
  std::size_t const own = features_of(member, plan.members, planned.features).size();
  return all * (row / planned.features * own);
}

/// Elements of a layer's output that a member has, for the rows of its group; 0 if unknown.
/// @param layer  in the plan
/// @param rows   of each member
[[nodiscard]] constexpr std::size_t activations_of(SplitPlan const& plan,
                                                   std::span<LayerFeatures const> layers,
                                                   std::size_t layer, int member,
                                                   std::size_t rows) noexcept {
  std::size_t const features = plan.layers[layer].features;
  return share_of_output(plan, layer, member, rows,
                         features != 0 ? features : layers[layer].values);
}
/// The same in bytes; 0 if LayerFeatures::row_bytes is not known.
[[nodiscard]] constexpr std::size_t activation_bytes_of(SplitPlan const& plan,
                                                        std::span<LayerFeatures const> layers,
                                                        std::size_t layer, int member,
                                                        std::size_t rows) noexcept {
  return share_of_output(plan, layer, member, rows, layers[layer].row_bytes);
}

/// Parameters of a layer that a member has.
[[nodiscard]] constexpr std::size_t parameters_of(PlannedLayer const& planned,
                                                  LayerFeatures const& layer, int member,
                                                  int members) noexcept {
  auto const part = [&](std::size_t features) {
    return features_of(member, members, features).size();
  };
  if (planned.by == SplitBy::outputs) return layer.parameters / layer.outputs * part(layer.outputs);
  if (planned.by == SplitBy::nothing) return layer.parameters;
  std::size_t const shared = planned.by == SplitBy::hidden ? layer.hidden : layer.inputs;
  return (layer.parameters - layer.biases) / shared * part(shared) +
         (member == 0 ? layer.biases : 0);
}

/// Likewise for all layers.
/// @throws Error  mismatch unless the number of layers is the plan's
[[nodiscard]] constexpr std::size_t parameters_of(SplitPlan const& plan,
                                                  std::span<LayerFeatures const> layers,
                                                  int member) {
  if (layers.size() != plan.layers.size())
    raise(Errc::mismatch, "a plan for ", counted(plan.layers.size(), "layer"),
          " does not belong to a chain of ", layers.size(), "; give the layers it was made for");
  std::size_t sum = 0;
  for (std::size_t l = 0; l < layers.size(); ++l)
    sum += parameters_of(plan.layers[l], layers[l], member, plan.members);
  return sum;
}

/// Elements that a rank sends to average the gradients, by a reduce-scatter and an all-gather: for
/// the layers before the first split layer among all ranks, for all others among the ranks that
/// have the same piece.
/// @param ranks  ranks of the position, a multiple of the plan's members
/// @throws Error  as for parameters_of; bad_configuration for ranks that are not a whole number of
///                groups
[[nodiscard]] constexpr double averaged_elements(SplitPlan const& plan,
                                                 std::span<LayerFeatures const> layers, int member,
                                                 int ranks) {
  if (ranks < plan.members || ranks % plan.members != 0)
    raise(Errc::bad_configuration, counted(ranks, "rank"), " cannot form groups of ", plan.members,
          "; use a multiple of it");
  std::size_t alone = 0;
  for (std::size_t l = 0; l < plan.layers.size(); ++l)
    if (plan.layers[l].takes == Held::rows) alone += layers[l].parameters;
  std::size_t const all = parameters_of(plan, layers, member);
  auto const ring = [](int holders, std::size_t elements) {
    return 2.0 * (holders - 1) / holders * static_cast<double>(elements);
  };
  return ring(ranks, alone) + ring(ranks / plan.members, all - alone);
}

}  // namespace stagger::partition
