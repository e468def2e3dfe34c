// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Groups of ranks that share layers (tensor parallelism): how a model is divided among the
///         members of a group, and what they exchange.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <stagger/core/columns.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/list.hpp>
#include <stagger/engine/detail/group_parameters.hpp>
#include <stagger/engine/detail/split_ops.hpp>
#include <stagger/engine/layer.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/engine/replica_run.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/partition/split_plan.hpp>
#include <stagger/program/sections.hpp>
#include <stagger/program/versions.hpp>

namespace stagger::detail {

struct GroupedModel final : Grouped {
  Sections divided;
  StalenessModel each_pass;
  bool adds_up_in_each_pass = true;  // gradients of several groups
  partition::SplitChain chain;       // without parameters

  [[nodiscard]] schedule::Table table(schedule::Table const&, Replicas const&) const override;
  [[nodiscard]] Sections const& sections() const noexcept override { return divided; }
  [[nodiscard]] ConnectSections* connects() const noexcept override { return &connect_sections; }
  void require_pieces(ModelState const& model) const override {
    GroupParameters::require_pieces(model);
  }
  void describe(Machine const&, RowEdge const&, bool forward, RowSource&) const override;
  void take(RowSource const&, TakenBlocks&, void* to, void const* from, RowRange at,
            std::size_t first_row, std::size_t rows) const override;
  void each_message(Machine const&, Instruction const&, void* self,
                    void (*visit)(void* self, int rank, std::uint64_t bytes)) const override;
  void append_states(ModelState& model, std::vector<ParameterState>& states,
                     bool own) const override {
    GroupParameters::append_states(model, states, own);
  }
  void put_back(ModelState& model) const override { GroupParameters::put_back(model); }
  [[nodiscard]] List<ParameterShape> shapes(ModelState const& model) const override {
    return GroupParameters::shapes(model);
  }
  void add_row(List<schedule::Span> const&, schedule::Timeline&) const override;
};

[[nodiscard]] [[gnu::cold]] inline partition::LayerFeatures features_of_layer(Layer const& layer) {
  partition::LayerFeatures features;
  SplitOps const* const ops = layer.ops().split;
  if (ops == nullptr) return features;
  features.element_wise = ops->element_wise;
  features.by_inputs = ops->by_inputs;
  if (ops->inputs != nullptr) features.inputs = ops->inputs(layer.object());
  if (ops->outputs != nullptr) features.outputs = ops->outputs(layer.object());
  if (ops->hidden != nullptr) features.hidden = ops->hidden(layer.object());
  if (ops->operations != nullptr) features.operations = ops->operations(layer.object());
  return features;
}

/// Makes a layer of each member's part or copy, and a stage of each member's part of a section.
class GroupDivision {
 public:
  GroupDivision(Setup const& setup, List<Layer>& layers)
      : setup_(setup), layers_(layers), model_(std::make_shared<GroupedModel>()) {}

  /// @return  without stages if no layer is shared; the layers are then as they were
  [[gnu::cold]] std::shared_ptr<Grouped const> make() {
    auto& [plan, features, numbers] = model_->chain;
    for (std::size_t l = 0; l < layers_.size(); ++l) add_whole(l);
    for (std::size_t l = 0; l < whole_.size(); ++l) {
      features.push_back(features_of_layer(whole_[l]));
      numbers.push_back(of_model_[l].number);
    }
    GroupChoice const& choice = setup_.groups;
    plan =
        partition::plan_split(features, {choice.members, choice.threshold, choice.pairs}, numbers);
    if (plan.first == features.size()) return model_;
    if (choice.each_pass) require_alone();
    if (setup_.options.replicas.empty() && choice.members > 1)
      raise(Errc::bad_configuration, "a position with 1 rank cannot form groups of ",
            choice.members, "; give Options::replicas a multiple of ", choice.members);
    model_->table_stages = static_cast<int>(setup_.cuts.size()) + 1;
    model_->model_layers = layers_.size();
    model_->divided.members = choice.members;
    for (std::size_t first = 0; first < whole_.size();) {
      if (plan_.adds_in_shares(first)) add_shares(first);
      first = add_section(first);
    }
    describe();
    if (choice.each_pass) update_each_pass();
    if (plan_.adds_in_shares(whole_.size())) add_shares(whole_.size());
    if (plan_.end != partition::GroupExchange::none)  // every member has the layer before the loss
      add_put_together(*whole_.back().ops().split->output, whole_.size(), false, false);
    model_->divided.stages = static_cast<int>(model_->table_stage.size());
    layers_ = std::move(made_);
    return model_;
  }

 private:
  /// Refuses what needs the gradients of a whole step before the first update.
  [[gnu::cold]] void require_alone() const {
    require_combination(setup_.features | feature::each_pass);
  }

  /// Every microbatch sees the newest weights that the schedule permits.
  [[gnu::cold]] void update_each_pass() {
    int depth = 0;
    while (!model_->divided.chain[depth].grouped) ++depth;
    model_->each_pass = setup_.staleness;  // for what is pushed to a server at the end of a step
    model_->each_pass.microbatches = 1;
    model_->each_pass.version = [](void const*, int, int available) { return available; };
    model_->each_pass.fix = &fix_versions;
    model_->each_pass.passes = version_passes<StalenessModel>();
    model_->each_pass.in_step_from = depth;
    model_->updates = &model_->each_pass;
    model_->adds_up_in_each_pass =
        !setup_.features.has(feature::own_memory) && !setup_.features.has(feature::own_stages);
  }

  /// Adds the layer, or the two layers into which it is divided for groups.
  [[gnu::cold]] void add_whole(std::size_t l) {
    Layer const& layer = layers_[l];
    SplitOps const* const ops = layer.ops().split;
    if (ops == nullptr || ops->divide == nullptr) {
      whole_.push_back(Layer(layer));
      of_model_.push_back({static_cast<int>(l), true, true});
      return;
    }
    void* made[2];
    LayerOps const* made_ops[2];
    ops->divide(layer.object(), made, made_ops);
    for (int i : {0, 1}) {
      whole_.push_back(Layer(made[i], *made_ops[i]));
      of_model_.push_back({static_cast<int>(l), i == 0, i == 1});
    }
  }

  [[nodiscard]] bool begins_stage(std::size_t layer) const {
    if (layer == 0) return true;
    for (int const cut : setup_.cuts)
      if (cut == of_model_[layer].number && of_model_[layer].begins) return true;
    return false;
  }

  /// @return the first layer behind it
  [[gnu::cold]] std::size_t add_section(std::size_t first) {
    std::size_t end = first + 1;
    while (end < whole_.size() && !begins_stage(end) && end != plan_.first &&
           plan_.layers[end].exchange == partition::GroupExchange::none)
      ++end;
    partition::PlannedLayer const& front = plan_.layers[first];
    partition::PlannedLayer const& back = plan_.layers[end - 1];
    if (begins_stage(first) && first != 0) ++table_stage_;
    Section section;
    section.grouped = first >= plan_.first;
    section.opens = begins_stage(first);
    section.takes = front.takes;
    section.gives = back.gives;
    section.partial = front.partial();
    section.features = back.features;
    append(section);
    int const members = section.grouped ? model_->divided.members : 1;
    for (std::size_t l = first; l < end; ++l)
      model_->wholes.push_back({made_.size() + (l - first), members, end - first,
                                plan_.layers[l].by != SplitBy::nothing});
    for (int m = 0; m < members; ++m) {
      begin_part();
      for (std::size_t l = first; l < end; ++l) add_layer(l, m, members);
    }
    return end;
  }
  void append(Section section) {
    section.table_stage = table_stage_;
    section.stage = static_cast<int>(model_->table_stage.size());
    model_->divided.chain.push_back(section);
    model_->stage_at.push_back(table_stage_);
  }
  /// Begins a stage of the program, a member's part of the last section.
  void begin_part() {
    if (made_.size() != 0) model_->cuts.push_back(static_cast<int>(made_.size()));
    model_->table_stage.push_back(table_stage_);
  }

  /// Describes the division as text, which processes compare.
  [[gnu::cold]] void describe() {
    auto& words = model_->description;
    words = text("group ", plan_.members, ", layers");
    for (std::size_t l = 0; l < plan_.layers.size(); ++l)
      if (SplitBy const by = plan_.layers[l].by; by != SplitBy::nothing)
        words += text(" ", of_model_[l].number,
                      by == SplitBy::outputs  ? " by outputs"
                      : by == SplitBy::inputs ? " by inputs"
                                              : " inside");
    if (setup_.groups.each_pass) words += ", updated each pass";
  }

  /// Adds the layer in front of another, or of the loss, in which each member adds up its columns.
  [[gnu::cold]] void add_shares(std::size_t l) {
    partition::GroupExchange const exchange = plan_.exchange(l);
    add_put_together(l < whole_.size() && exchange != partition::GroupExchange::total
                         ? *whole_[l].ops().split->input
                         : *whole_[l - 1].ops().split->output,
                     l, exchange != partition::GroupExchange::fan,
                     exchange != partition::GroupExchange::total);
  }
  /// Adds a layer of every member that puts together what all have at a cut.
  [[gnu::cold]] void add_put_together(ColumnOps const& ops, std::size_t cut, bool adds_forward,
                                      bool adds_backward) {
    Section section;
    section.grouped = true;
    section.opens = false;
    section.takes = section.gives = partition::Held::whole;
    section.features = plan_.width(cut);
    section.adds_forward = adds_forward;
    section.adds_backward = adds_backward;
    append(section);
    for (int m = 0; m < model_->divided.members; ++m) {
      begin_part();
      made_.push_back(
          Layer(ops.put_together({m, model_->divided.members, adds_forward, adds_backward}),
                ops.put_together_ops()));
      Grouped::Entry entry;
      entry.number = static_cast<int>(layers_.size());
      entry.counted = m == 0;
      entry.work = 0;
      model_->layers.push_back(entry);
    }
  }

  [[gnu::cold]] void add_layer(std::size_t l, int member, int members) {
    partition::PlannedLayer const& planned = plan_.layers[l];
    Grouped::Entry entry;
    entry.number = of_model_[l].number;
    entry.counted = member == 0 || planned.by != SplitBy::nothing;
    entry.split = planned.by != SplitBy::nothing;
    if (planned.takes == partition::Held::columns || entry.split) entry.work = 1.0 / members;
    if (!of_model_[l].works) entry.work = 0;
    if (planned.takes == partition::Held::columns)
      entry.first_column = features_of(member, members, planned.arriving).first;
    model_->layers.push_back(entry);
    Layer const& whole = whole_[l];
    if (planned.by == SplitBy::nothing)
      made_.push_back(Layer(whole));
    else
      made_.push_back(
          Layer(whole.ops().split->part(whole.object(), member, members, planned.by), whole.ops()));
  }

  /// The layer of the model to which a layer of the engine belongs.
  struct OfModel {
    int number;
    bool begins;
    bool works;  // it has the computing time of the layer of the model
  };

  Setup const& setup_;
  List<Layer>& layers_;
  List<Layer> whole_;
  List<OfModel> of_model_;  // [whole]
  std::shared_ptr<GroupedModel> model_;
  partition::SplitPlan const& plan_ = model_->chain.plan;
  List<Layer> made_;
  int table_stage_ = 0;
};

/// The functions that copy blocks of the value between two layers.
[[nodiscard]] inline ColumnOps const* blocks_of(LayerOps const& before, LayerOps const& behind) {
  if (before.split != nullptr) return before.split->output;
  return behind.split != nullptr ? behind.split->input : nullptr;
}

[[noreturn]] [[gnu::cold]] inline void refuse_host_columns(int layer) {
  raise(Errc::bad_configuration, "the input of layer ", layer,
        " has columns that the host copies, but kernels read it later; where stages enqueue, "
        "groups need a cuda::Tensor, or a type that copies and adds its columns on "
        "cuda::stream() and says static constexpr bool columns_on_stream = true");
}
[[gnu::cold]] inline void GroupedModel::describe(Machine const& machine, RowEdge const& edge,
                                                 bool forward, RowSource& source) const {
  RowUse const& use = edge.use(forward);
  source.adds = use.adds;
  int const members = divided.members;
  source.members = static_cast<std::size_t>(members);
  source.member = static_cast<std::size_t>(machine.run.program->cells[source.cell].member);
  source.blocks =
      blocks_of(*machine.run.cells[edge.from].back->ops, *machine.run.cells[edge.to].front->ops);
  if (machine.model.memory != nullptr && source.blocks != nullptr && !source.blocks->on_stream)
    refuse_host_columns(machine.run.cells[edge.to].front->number);
  if (use.part == TakenPart::all) return;
  auto const& cells = machine.run.program->cells;
  Cell const& holder = cells[cells[edge.from].columns.size() != 0 ? edge.from : edge.to];
  if (use.part == TakenPart::kept) {
    source.share = holder.member;
    source.shares = members;
    return;
  }
  bool const puts = use.part == TakenPart::put;
  IndexRange const all{0, holder.columns.size()};
  source.of = puts ? all : holder.columns;
  source.at = puts ? holder.columns : all;
  source.has = puts ? all.size() : holder.features;
  source.gets = puts ? holder.features : all.size();
}

inline void GroupedModel::take(RowSource const& source, TakenBlocks& blocks, void* to,
                               void const* from, RowRange at, std::size_t first_row,
                               std::size_t rows) const {
  ColumnOps const& ops = *source.blocks;
  void const* whole = from;
  if (source.whole.first != nullptr)
    whole = source.whole.first + (static_cast<std::byte const*>(from) - source.from.first);
  std::size_t const has = ops.count(whole);
  source.require_columns(has);
  std::size_t const gets = source.gets != 0 ? source.gets : has;
  IndexRange const columns = source.columns(has);
  if (rows != 0)
    ops.resize(to, whole, {rows, gets});
  else if (std::size_t const others = ops.count(to); others != gets)
    refuse_columns(gets, others);
  std::size_t const place = source.shares != 0 ? columns.first : source.at.first;
  bool const cut = whole != from && columns.size() != has;
  Block const first{first_row, cut ? 0 : columns.first};
  std::size_t const begin = ops.on_stream ? 0 : at.count() * source.member / source.members;
  blocks.add(ops, to, at, begin, {from, first, place, columns.size(), source.adds});
}

/// Counts what an instruction takes from other members, as one message from each of them.
inline void GroupedModel::each_message(Machine const& machine, Instruction const& in, void* self,
                                       void (*visit)(void* self, int rank,
                                                     std::uint64_t bytes)) const {
  ReplicaRun const& run = *machine.run.replica_run;
  Program const& program = *machine.run.program;
  bool const forward = is_forward(in.op);
  Cell const& taker = program.cells[in.cell];
  for (RowSource const& source : run.sources(forward)) {
    Cell const& maker = program.cells[source.maker];
    if (source.cell != in.cell || maker.rank == taker.rank || source.blocks == nullptr ||
        stage_at[maker.depth] != stage_at[taker.depth])
      continue;
    RowRange const theirs = run.cells[source.maker].rows[in.microbatch];
    RowRange const both = theirs.common(run.cells[in.cell].rows[in.microbatch]);
    void const* const from = source.from[forward ? in.y : in.dx];
    SlotType const& type = machine.run.cells[in.cell].taken(forward);
    std::size_t const columns = source.columns(source.blocks->count(from)).size();
    visit(self, maker.rank,
          source.blocks->bytes(
              from, {both.count() * rows_for_each(type, from, theirs.count()), columns}));
  }
}

[[gnu::cold]] inline schedule::Table GroupedModel::table(schedule::Table const& table,
                                                         Replicas const& replicas) const {
  FixedArray<int> holder(table.stages);  // position + 1
  for (int p = 0; p < table.ranks(); ++p)
    for (auto const& action : table.row(p))
      for (Section const& section : divided.chain) {
        if (!section.grouped || section.table_stage != action.stage) continue;
        int const ranks = replicas.empty() ? 1 : replicas.counts()[p];
        if (ranks % divided.members != 0)
          raise(Errc::bad_configuration, "position ", p, " of the schedule has ",
                counted(ranks, "rank"), ", which cannot form groups of ", divided.members,
                " for the layers of stage ", action.stage, "; give it a multiple of ",
                divided.members, ", or LayerSplit another group");
        int& first = holder[action.stage];
        if (first == 0) first = p + 1;
        if (updates != nullptr && first != p + 1)
          require_rule(Rule::owners_each_pass, feature::two_owners | feature::each_pass,
                       text("stage ", action.stage));
        if (updates != nullptr && !adds_up_in_each_pass && ranks != divided.members)
          raise(Errc::bad_configuration, "stage ", action.stage, " has ", ranks / divided.members,
                " groups of ", divided.members,
                ", which in each pass add up gradients in the memory of one process alone; use "
                "host::Threads, let ",
                counted(divided.members, "rank"), " run it, or use Update::accumulate");
      }
  return table_of_sections(table, replicas, divided);
}

/// True for a span of the same action, and for a forward run again within a backward.
[[nodiscard]] inline bool continues(schedule::Span const& joined, schedule::Span const& next) {
  if (!schedule::is_compute(next.action.kind)) return false;
  if (joined.action == next.action && joined.repeated == next.repeated) return true;
  return next.repeated && schedule::gives_input_gradient(joined.action.kind) &&
         joined.action.stage == next.action.stage &&
         joined.action.microbatch == next.action.microbatch;
}

/// The spans of one action become one, which then contains the exchanges between them, and later
/// recomputations within a backward.
[[gnu::cold]] inline void GroupedModel::add_row(List<schedule::Span> const& spans,
                                                schedule::Timeline& timeline) const {
  timeline.begin_row();
  for (schedule::Span span : spans) {
    span.action.stage = table_stage[span.action.stage];
    if (timeline.spans.size() > timeline.row_begin.back() &&
        continues(timeline.spans.back(), span)) {
      schedule::Span& joined = timeline.spans.back();
      joined.exchange_s += span.start_s - joined.end_s;
      joined.end_s = span.end_s;
    } else {
      timeline.add(span);
    }
  }
}

/// What adds groups to a pipeline.
class GroupPolicy final : public PolicyPart {
 public:
  [[gnu::cold]] void divide(Setup& setup, List<Layer>& layers) const override {
    if (!setup.features.has(feature::layer_split)) return;
    setup.division = GroupDivision(setup, layers).make();
    if (setup.division->table_stages != 0) setup.grouped = setup.division.get();
  }
};

template <> struct GroupTable<WithGroups> {
  static void extend(std::vector<std::shared_ptr<PolicyPart const>>& parts) {
    parts.push_back(std::make_shared<GroupPolicy>());
  }
};

}  // namespace stagger::detail
