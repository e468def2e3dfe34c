// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Sums of gradients over replicas on other GPUs, while the last backward still runs.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <stagger/core/list.hpp>
#include <stagger/cuda/detail/distributed_state.hpp>
#include <stagger/cuda/detail/streams.hpp>
#include <stagger/cuda/kernels.hpp>

namespace stagger::cuda::detail {

/// The sum of one gradient group over the members of a replica group, which `select` names. Each
/// member receives the others' gradients of its part of each layer, adds them in the order of
/// holders, and sends the sums to the others (a reduce-scatter, then an all-gather). If the
/// collective says so, or if there are two holders, whose order does not matter, the sum is instead
/// one all-reduce of the library that connects the processes.
///
/// If members share the optimizer's state out, each only needs the sum of its part. It updates that
/// part, and then sends its values to the others. The first one still gets all sums if it adds up
/// their squares.
class GroupReduction {
 public:
  GroupReduction(Streams& streams, ParameterKernels const* kernels, DistributedState const& state)
      : streams_(streams), kernels_(kernels), state_(state) {}

  /// Whether the collective asks for sums by the library.
  [[nodiscard]] bool asks_library() const noexcept {
    return streams_.machine().run.grouping.by == collective::By::library;
  }
  /// The cell of a stage on one of the GPUs.
  [[nodiscard]] std::size_t cell_of(int stage, std::size_t gpu) const noexcept {
    auto const& cells = state_.program().cells;
    std::size_t c = 0;
    while (cells[c].stage != stage || streams_.gpu_of(state_.rank_of(c)) != gpu) ++c;
    return c;
  }

  /// The fewest members of a group that exchange parts.
  [[nodiscard]] std::size_t fewest() const noexcept {
    if (state_.machine.shards()) return 2;
    return asks_library() ? ~std::size_t{0} : 3;
  }

  /// Selects the layers of a gradient group that have parameters, at each member.
  void select(GradientGroup const& layers, ReplicaGroup const& group) {
    stage_ = layers.stage;
    blocks_.resize(std::max(blocks_.size(), group.members.size()));
    for (std::size_t m = 0; m < group.members.size(); ++m) {
      blocks_[m].clear();
      int layer = 0;  // of the stage
      state_.each_layer(
          cell_of(layers.stage, group.members[m]->gpu), [&](std::size_t l, GradientCopy* copy) {
            int const here = layer++;
            auto const& parameters = state_.parameters(l);
            if (here < layers.lowest || here > layers.highest || parameters.count() == 0) return;
            blocks_[m].push_back({&parameters, copy != nullptr ? copy->views() : parameters.views(),
                                  group.places.size()});
          });
    }
  }

  /// Memory for the gradients that members receive from each other.
  [[gnu::cold]] void make_room(ReplicaGroup const& group) const {
    if (by_library(group)) return;
    for (std::size_t m = 0; m < group.members.size(); ++m) {
      Member& member = *group.members[m];
      std::size_t bytes = 0;
      for (auto const& block : blocks_[m]) bytes += block.part(member.number).bytes;
      bytes *= group.places.size() - 1;
      if (member.received.size() >= bytes) continue;
      streams_.gpus().select(member.gpu);  // another one may be selected behind the streams' back
      member.received.resize({bytes});
    }
  }

  /// Room for what the members of the group exchange, so that steps allocate nothing for it.
  [[gnu::cold]] void reserve(ReplicaGroup const& group) {
    if (!blocks_.empty()) exchanges_.reserve(blocks_.front().size() * group.places.size());
  }

  /// Enqueues the sum.
  /// @param wait_for_each_other  has each member's stream wait until all have added their parts
  template <class Wait> void enqueue(ReplicaGroup const& group, Wait wait_for_each_other) {
    if (blocks_.front().empty()) return;
    if (by_library(group)) return add_by_library(group);
    exchange(group, Direction::to_reducer);
    for (std::size_t m = 0; m < group.members.size(); ++m) add_own_part(group, m);
    bool const in_parts = state_.machine.shards();
    if (in_parts && !state_.adds_squares()) return;
    wait_for_each_other();
    exchange(group, in_parts ? Direction::to_first : Direction::to_others);
  }
  /// Enqueues that each member takes the values of the parts that others have updated.
  void take_values(ReplicaGroup const& group) { exchange(group, Direction::to_others, true); }

 private:
  enum class Direction : std::uint8_t { to_reducer, to_others, to_first };

  /// The gradients of one layer at one member.
  struct LayerBlock {
    stagger::detail::LayerParameters const* parameters;
    ParameterView const* views;
    std::size_t parts;

    /// The part that member p of the group adds up. @param values  instead of gradients
    [[nodiscard]] Block part(std::size_t p, bool values = false) const noexcept {
      auto const range = parameters->part(p, parts);
      void* const all = values ? views[0].value : views[0].gradient;
      return {static_cast<std::byte*>(all) + range.first, range.last - range.first};
    }
  };

  [[nodiscard]] GpuSet& gpus() const noexcept { return streams_.gpus(); }
  [[nodiscard]] std::size_t number_of(ReplicaGroup const& group) const noexcept {
    return static_cast<std::size_t>(&group - gpus().groups().data());
  }
  [[nodiscard]] bool by_library(ReplicaGroup const& group) const noexcept {
    return gpus().processes() != nullptr && (asks_library() || group.places.size() < fewest());
  }

  void add_by_library(ReplicaGroup const& group) {
    summands_.clear();
    for (auto const& [parameters, views, parts] : blocks_.front())
      for (std::size_t p = 0; p < parameters->count(); ++p)
        if (views[p].size != 0)
          summands_.push_back({views[p].gradient, views[p].size, parameters->declaration(p).type});
    gpus().processes()->all_reduce(number_of(group), summands_);
    TrafficCount sent;
    for (Summand const& each : summands_) sent += {1, each.size * element_bytes(each.type)};
    count(group, sent);
  }
  /// Counts what this process's member of a group has sent to the others.
  void count(ReplicaGroup const& group, TrafficCount const& sent, bool values = false) const {
    std::size_t const cell = cell_of(stage_, group.members.front()->gpu);
    streams_.machine().traffic.add_to_step(
        state_.rank_of(cell), values ? TrafficKind::parameters : TrafficKind::gradient_sums, sent);
  }

  /// Each member takes the others' gradients of its part; or hands its part to all others, or to the
  /// first. @param values  instead of gradients
  void exchange(ReplicaGroup const& group, Direction direction, bool values = false) {
    bool const adding = direction == Direction::to_reducer;
    auto const takes = [&](std::size_t member) {
      return direction != Direction::to_first || member == 0;
    };
    for (std::size_t m = 0; m < group.members.size(); ++m) {
      Member& member = *group.members[m];
      auto* received = member.received.data();
      exchanges_.clear();
      streams_.use(member.gpu);
      for (std::size_t i = 0; i < blocks_[m].size(); ++i)
        for (std::size_t peer = 0; peer < group.places.size(); ++peer) {
          if (peer == member.number) continue;
          LayerBlock const& own = blocks_[m][i];
          Block to{received, own.part(member.number).bytes};
          if (adding)
            received += to.bytes;
          else
            to = own.part(peer, values);
          if (!takes(member.number)) to.bytes = 0;
          Block given = own.part(adding ? peer : member.number, values);
          if (!takes(peer)) given.bytes = 0;
          if (gpus().processes() != nullptr) {
            if (given.bytes + to.bytes != 0) exchanges_.push_back({peer, given, to});
          } else if (to.bytes != 0) {
            Block const from = blocks_[peer][i].part(adding ? member.number : peer, values);
            streams_.ask(
                [&] {
                  return gpus().copy(to, member.gpu, from.data, group.members[peer]->gpu,
                                     member.stream.get());
                },
                values ? "copy values to another GPU" : "copy gradients to another GPU");
          }
        }
      if (exchanges_.empty()) continue;
      gpus().processes()->exchange(number_of(group), exchanges_);
      TrafficCount sent;
      for (Exchange const& each : exchanges_)
        if (each.send.bytes != 0) sent += {1, each.send.bytes};
      count(group, sent, values);
    }
  }

  /// own part = the sum over holders, from the first to the last.
  void add_own_part(ReplicaGroup const& group, std::size_t m) {
    Member& member = *group.members[m];
    streams_.use(member.gpu);
    auto* received = member.received.data();
    for (LayerBlock const& block : blocks_[m]) {
      Block const own = block.part(member.number);
      auto* const here = static_cast<std::byte*>(own.data);
      auto* const sum = member.number == 0 ? here : received;
      for (std::size_t holder = 1; holder < block.parts; ++holder) {
        std::size_t const before = holder < member.number ? holder : holder - 1;
        add(block, member, sum, holder == member.number ? here : received + before * own.bytes);
      }
      if (sum != here && own.bytes != 0)
        check(cudaMemcpyAsync(here, sum, own.bytes, cudaMemcpyDeviceToDevice, member.stream.get()),
              "copy a sum of gradients");
      received += (block.parts - 1) * own.bytes;
    }
  }
  /// sum += more, of a member's part; parameter by parameter, which may be of either type.
  void add(LayerBlock const& block, Member const& member, std::byte* sum,
           std::byte const* more) const {
    auto const own = block.parameters->part(member.number, block.parts);
    for (std::size_t p = 0; p < block.parameters->count(); ++p) {
      auto const range = block.parameters->range(p);
      std::size_t const first = std::max(range.first, own.first);
      std::size_t const last = std::min(range.last, own.last);
      if (first >= last) continue;
      ElementType const type = block.parameters->declaration(p).type;
      check(kernels_->add(type, sum + (first - own.first), more + (first - own.first),
                          (last - first) / element_bytes(type), member.stream.get()),
            "add gradients");
    }
  }

  Streams& streams_;
  ParameterKernels const* kernels_;
  DistributedState const& state_;
  std::vector<List<LayerBlock>> blocks_;  // [members], of the selected group
  int stage_ = 0;                         // of that group
  std::vector<Summand> summands_;
  std::vector<Exchange> exchanges_;
};

/// The holders of a stage that are on different GPUs form a replica group. As soon as the last
/// backward of a gradient group is enqueued, its sum (`GroupReduction`) is put after it on a stream
/// of each member. All members enqueue it at the place of the first holder in `Routes::order`, so
/// that all GPUs and processes make their sums in the same order. Each holder then updates its own
/// values. Holders that share a GPU add up there, as on threads, and form no group.
class GroupSums {
 public:
  GroupSums(Streams& streams, ParameterKernels const* kernels)
      : streams_(streams), state_{streams.machine()}, reduction_(streams, kernels, state_) {}

  /// Connects the groups, before the streams of the program are loaded.
  /// @param places  [ranks]
  /// @throws Error  bad_configuration if some holders of a stage share a GPU and others do not, or if
  ///                the optimizer's state was shared out to others
  [[gnu::cold]] void connect(std::vector<int> const& places) {
    auto const& program = state_.program();
    loaded_ = false;
    if (program.training && state_.machine.shards()) require_same_shares(places);
    std::vector<std::vector<int>> wanted;
    group_of_.assign(static_cast<std::size_t>(program.stages), Streams::none);
    each_stage(program, [&](int stage, IndexRange cells) {
      if (program.groups.empty() || !program.training) return;
      std::vector<int> holders;
      for (std::size_t const c : cells) holders.push_back(places[state_.rank_of(c)]);
      auto different = holders;
      std::sort(different.begin(), different.end());
      different.erase(std::unique(different.begin(), different.end()), different.end());
      if (different.size() == 1) return;
      if (different.size() != holders.size())
        raise(Errc::bad_configuration, "stage ", state_.machine.model.table_stage(stage),
              " is held by ", holders.size(), " ranks on ", different.size(),
              " GPUs; put them on one GPU, or each on one of its own, by a placement such as "
              "placement::ExplicitMap");
      if (program.exchanges())
        raise(Errc::bad_configuration, "stage ", state_.machine.model.table_stage(stage),
              " of a worker has replicas on ", different.size(),
              " GPUs, but its parameter server's weights are brought to one; put them on one GPU, "
              "by a placement such as placement::ExplicitMap");
      group_of_[stage] = wanted.size();
      wanted.push_back(holders);
    });
    auto const numbers = gpus().connect(wanted, reduction_.fewest());
    for (auto& group : group_of_)
      if (group != Streams::none) group = numbers[group];
  }

  /// Called after `connect`, once parameters lie where they are used.
  [[gnu::cold]] void load() {
    auto const& program = state_.program();
    ready_ = List<std::size_t>(program.cells.size(), Streams::none);
    for (std::size_t s = 0; s < program.signals.size(); ++s)
      if (program.signals[s].gradients >= 0) ready_[program.signals[s].gradients] = s;
    begun_.assign(program.groups.size(), false);
    loaded_ = true;
    if (!program.training) return;
    each_stage(program, [&](int stage, IndexRange cells) {
      for (std::size_t const c : cells)
        if (state_.machine.shards() && streams_.own(state_.rank_of(c)))
          state_.hold_states(c, apart(c));
      if (group_of_[stage] == Streams::none) return;
      state_.update_apart(cells);
      reduction_.select({stage}, group_of(stage));  // so that steps allocate nothing for it
      reduction_.reserve(group_of(stage));
    });
    for (GradientGroup const& gradients : program.groups) {
      if (group_of_[gradients.stage] == Streams::none) continue;
      auto const& group = group_of(gradients.stage);
      reduction_.select(gradients, group);
      reduction_.make_room(group);
    }
    if (state_.machine.shards() && shares_.size() == 0) shares_ = asked_;
  }

  /// Whether the machine's program was not refused.
  [[nodiscard]] bool loaded() const noexcept { return loaded_; }
  void begin_step() noexcept { std::fill(begun_.begin(), begun_.end(), false); }

  /// Whether the holders of a cell's stage are on different GPUs.
  [[nodiscard]] bool apart(std::size_t cell) const noexcept {
    return group_of_[state_.program().cells[cell].stage] != Streams::none;
  }
  /// Whether the time of a sum is measured here: where the first holder runs.
  [[nodiscard]] bool measures(Instruction const& in) const noexcept {
    return in.part() == 0 && streams_.own(state_.rank_of(in.cell));
  }

  /// Enqueues the sum that a `reduce` of any rank belongs to, once.
  /// @param around  (gpu, stream of one member, enqueue) calls `enqueue()`
  template <class Around> void add_up(Instruction const& in, Around around) {
    if (begun_[in.group]) return;
    begun_[in.group] = true;
    auto const& group = group_of(in.stage);
    if (group.members.empty()) return;
    reduction_.select(state_.program().groups[in.group], group);
    std::size_t const first = first_group(in.stage);
    for (auto const& member : group.members)
      for (auto const& other : group.members)
        streams_.await(member->stream, ready_[reduction_.cell_of(in.stage, other->gpu)],
                       in.group - first);
    auto& one = *group.members.front();
    around(one.gpu, one.stream,
           [&] { reduction_.enqueue(group, [&] { wait_for_each_other(in.group, group); }); });
    for (auto const& member : group.members) record(in.group, *member);
  }
  /// Lets the stream of a rank with a `reduce` wait for the sum.
  void await(std::size_t rank, Instruction const& in) const { await(rank, in.group, in.stage); }

  /// Enqueues the updates of a rank's stages by all their holders except the first.
  void update(std::size_t rank) const {
    for (std::size_t c = 0; c < state_.program().cells.size(); ++c)
      if (state_.rank_of(c) == rank && apart(c)) state_.update(c);
  }
  /// If the optimizer's state is shared out, enqueues that holders take the values of the parts that
  /// others have updated. Called after the updates of all ranks.
  void take_values() {
    if (!state_.machine.shards()) return;
    each_stage(state_.program(), [&](int stage, IndexRange cells) {
      if (!apart(cells.first) || group_of(stage).members.empty()) return;
      auto const& group = group_of(stage);
      std::size_t const number = first_group(stage);
      for (auto const& other : group.members) {
        std::size_t const rank = state_.rank_of(reduction_.cell_of(stage, other->gpu));
        auto& updated = streams_.event(other->gpu, streams_.numbers().rank(rank));
        streams_.record(streams_.compute(rank), updated);
        for (auto const& member : group.members) streams_.wait(member->stream, updated);
      }
      reduction_.select({stage}, group);
      reduction_.take_values(group);
      for (auto const& member : group.members) record(number, *member);
      for (std::size_t const c : cells)  // before they change what others have read
        if (streams_.own(state_.rank_of(c))) await(state_.rank_of(c), number, stage);
    });
  }

  /// The way in which processes choose the same groups.
  [[nodiscard]] [[gnu::cold]] stagger::detail::GroupingPeers peers() noexcept {
    return {this,
            [](void* sums, double* backward_s, double* sum_s) {
              static_cast<GroupSums*>(sums)->share(backward_s, sum_s);
            },
            nullptr};
  }
  /// Adds up the times that each process has measured for the groups of the program, so that all
  /// decide from the same times.
  [[gnu::cold]] void share(double* backward_s, double* sum_s) const {
    for (double* const times : {backward_s, sum_s})
      gpus().processes()->add_up(std::span(times, state_.program().groups.size()));
  }

 private:
  struct Share {
    int stage;
    int place;
  };

  /// All processes compare all shares, so that none of them trains. Replicas on one GPU share one
  /// state, and nothing is shared out.
  [[gnu::cold]] void require_same_shares(std::vector<int> const& places) {
    auto const place_of = [&](std::size_t c) { return places[state_.rank_of(c)]; };
    List<Share> now;
    each_stage(state_.program(), [&](int stage, IndexRange cells) {
      bool apart = false;
      for (std::size_t const c : cells) apart = apart || place_of(c) != place_of(cells.first);
      for (std::size_t const c : cells)
        if (apart) now.push_back({stage, place_of(c)});
    });
    asked_ = now;
    if (shares_.size() == 0) return;
    for (std::size_t c = 0; c < std::max(now.size(), shares_.size()); ++c)
      if (c >= now.size() || c >= shares_.size() || now[c].stage != shares_[c].stage ||
          now[c].place != shares_[c].place) {
        auto const& model = state_.machine.model;
        int const stage = shares_[std::min(c, shares_.size() - 1)].stage;
        stagger::detail::refuse_other_shares(model.number(model.layers_of(stage).first),
                                             state_.program().microbatches);
      }
  }
  [[nodiscard]] GpuSet& gpus() const noexcept { return streams_.gpus(); }
  template <class Stage> [[nodiscard]] ReplicaGroup const& group_of(Stage stage) const noexcept {
    return gpus().groups()[group_of_[stage]];
  }
  /// The first gradient group of a stage.
  [[nodiscard]] std::size_t first_group(int stage) const noexcept {
    std::size_t first = 0;
    while (state_.program().groups[first].stage != stage) ++first;
    return first;
  }
  [[nodiscard]] Event& summed(std::size_t gradients, Member const& member) const noexcept {
    return streams_.event(member.gpu, streams_.numbers().group(gradients));
  }
  void record(std::size_t gradients, Member const& member) const {
    streams_.record(member.stream, summed(gradients, member));
  }
  void await(std::size_t rank, std::size_t gradients, int stage) const {
    for (auto const& member : group_of(stage).members)
      streams_.wait(streams_.compute(rank), summed(gradients, *member));
  }
  void wait_for_each_other(std::size_t gradients, ReplicaGroup const& group) const {
    if (group.members.size() == 1) return;
    for (auto const& member : group.members) record(gradients, *member);
    for (auto const& member : group.members)
      for (auto const& other : group.members)
        if (member != other) streams_.wait(member->stream, summed(gradients, *other));
  }

  Streams& streams_;
  DistributedState state_;
  GroupReduction reduction_;
  List<std::size_t> group_of_;  // [stages] number of its replica group
  List<std::size_t> ready_;     // [cells] signal that its gradients are there
  List<bool> begun_;            // [groups] in this step
  List<Share> shares_;          // of stages apart, once the state is shared out to them
  bool loaded_ = false;
  List<Share> asked_;  // of the program that is being loaded
};

}  // namespace stagger::cuda::detail
