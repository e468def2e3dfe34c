// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Gradients of replicas on several GPUs: NCCL adds up group after group while the last
/// backward still runs.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <stagger/cuda/kernels.hpp>
#include <stagger/nccl/detail/links.hpp>
#include <stagger/nccl/detail/teams.hpp>

namespace stagger::nccl::detail {

/// Stages whose holders lie on GPUs of their own have a team each, in the order of holders. The sum
/// of a group is an all-reduce of NCCL's where the collective says so, or where there are two,
/// whose order does not matter; else each holder takes the others' gradients of its part of each
/// layer, adds them in the order of holders, and hands the sums over. All that is put onto a stream
/// of the team behind the group's part of the last backward, where the first holder that comes to
/// it stands in the order of `Routes`: so all communicators are given everything in one order, on
/// every GPU and in every process. Each holder then updates by itself. Holders on one GPU add up
/// there, with the program's own kernel.
class GroupSums {
 public:
  GroupSums(stagger::detail::Machine& machine, cuda::ParameterKernels const* kernels,
            GpuSet& gpu_set, Links& links)
      : machine_(machine), kernels_(kernels), gpu_set_(gpu_set), links_(links) {}

  /// Meets the others, before the links of the program are made.
  /// @param place   [ranks]
  /// @throws Error  bad_configuration where some holders of a stage share a GPU, and others do not
  [[gnu::cold]] void load(std::vector<int> const& place, double meet_s) {
    auto const& program = machine_.program();
    std::vector<std::vector<int>> wanted;
    team_of_.assign(static_cast<std::size_t>(program.stages), none);
    first_group_ = team_of_;
    for (std::size_t g = program.groups.size(); g-- > 0;)
      first_group_[static_cast<std::size_t>(program.groups[g].stage)] = g;
    for (std::size_t first = 0, end = 0; first < program.cells.size(); first = end) {
      std::vector<int> holders;
      for (; end < program.cells.size() && program.cells[end].stage == program.cells[first].stage;
           ++end)
        holders.push_back(place[static_cast<std::size_t>(program.cells[end].rank)]);
      auto different = holders;
      std::sort(different.begin(), different.end());
      different.erase(std::unique(different.begin(), different.end()), different.end());
      if (program.groups.empty() || different.size() == 1) continue;
      if (different.size() != holders.size())
        raise(Errc::bad_configuration, "stage ", program.cells[first].stage, " is held by ",
              holders.size(), " ranks on ", different.size(),
              " GPUs; put them on one GPU, or each on one of its own, by a placement such as "
              "placement::ExplicitMap");
      team_of_[static_cast<std::size_t>(program.cells[first].stage)] = wanted.size();
      wanted.push_back(holders);
    }
    auto const numbers = gather(gpu_set_, wanted, !by_library(), meet_s);
    for (auto& team : team_of_)
      if (team != none) team = numbers[team];
  }

  /// Behind the links and the places of parameters.
  [[gnu::cold]] void settle() {
    auto const& program = machine_.program();
    ready_.assign(program.cells.size(), none);
    for (std::size_t s = 0; s < program.signals.size(); ++s)
      if (program.signals[s].gradients >= 0)
        ready_[static_cast<std::size_t>(program.signals[s].gradients)] = s;
    for (std::size_t c = 0; program.training && c < program.cells.size(); ++c)
      if (apart(c) && links_.distributed_state().first_owner(c) == c)
        links_.distributed_state().update_apart(c);
    begun_.assign(program.groups.size(), false);
    for (std::size_t g = 0; program.training && g < program.groups.size(); ++g) {
      auto const stage = static_cast<std::size_t>(program.groups[g].stage);
      if (team_of_[stage] == none || !in_slices(gpu_set_.teams[team_of_[stage]])) continue;
      Instruction in;
      in.stage = static_cast<std::uint16_t>(stage);
      in.group = static_cast<std::uint16_t>(g);
      for (auto& end : gpu_set_.teams[team_of_[stage]].ends) {
        std::size_t bytes = 0;
        each_block(in, *end, [&](Block const& block) { bytes += block.own_bytes(); });
        bytes *= static_cast<std::size_t>(end->all.size()) - 1;
        links_.use(end->gpu);
        if (end->taken.size() < bytes) end->taken.resize({bytes});
      }
    }
  }

  void begin_step() noexcept { std::fill(begun_.begin(), begun_.end(), false); }

  /// Whether the holders of a cell's stage lie on GPUs of their own.
  [[nodiscard]] bool apart(std::size_t cell) const noexcept {
    return team_of_[static_cast<std::size_t>(machine_.program().cells[cell].stage)] != none;
  }
  /// Whether the time of a sum counts: as the first holder's, of this process.
  [[nodiscard]] bool measures(Instruction const& in) const noexcept {
    return in.part() == 0 && links_.own(links_.distributed_state().rank_of(in.cell));
  }

  /// The part of this process in the sum that a `reduce` of any rank belongs to, once.
  /// @param around  (gpu, stream of one end, enqueue) calls `enqueue()`
  template <class Around> void add_up(Instruction const& in, Around around) {
    if (begun_[in.group]) return;
    begun_[in.group] = true;
    Team& team = gpu_set_.teams[team_of_[in.stage]];
    if (team.ends.empty()) return;
    for (auto& end : team.ends) {
      links_.use(end->gpu);
      std::size_t const signal = ready_[cell_of(in.stage, *end)];
      std::size_t const number = in.group - first_group_[in.stage];
      links_.await(end->gpu, end->stream, signal, number);
    }
    around(team.ends.front()->gpu, team.ends.front()->stream, [&] {
      if (!has_gradients(in, cell_of(in.stage, *team.ends.front()))) return;
      if (in_slices(team)) return add_in_slices(in, team);
      links_.together([&] {
        for (auto& end : team.ends)
          end->last = links_.messages().add(end->gpu, end->stream, end->all, [&](auto& group) {
            Operation last;
            each_gradient(in, cell_of(in.stage, *end), [&](auto gradient) {
              last = end->all.all_reduce(group, gradient, Reduction::sum);
            });
            return last;
          });
      });
    });
    for (auto& end : team.ends) end->stream.record(links_.summed(end->gpu, in.group));
  }
  /// The stream of a rank that adds up goes on behind the sum.
  void await(std::size_t rank, Instruction const& in) {
    links_.compute(rank).wait(links_.summed(links_.gpu_of(rank), in.group));
  }

  /// Updates of a rank's stages by their holders but the first.
  void update(std::size_t rank) const {
    for (std::size_t c = 0; c < machine_.program().cells.size(); ++c)
      if (links_.distributed_state().rank_of(c) == rank && apart(c))
        links_.distributed_state().update(c);
  }

  /// For processes, which decide alike from the same times: adds up, in place, what each has
  /// measured of the groups of the program.
  [[gnu::cold]] void share(double* backward_s, double* sum_s) {
    std::size_t const groups = machine_.program().groups.size();
    Gpu& gpu = gpu_set_[0];
    gpu_set_.select(0);
    cuda::Pinned<double> all(2 * groups);
    std::copy_n(backward_s, groups, all.data());
    std::copy_n(sum_s, groups, all.data() + groups);
    cuda::Tensor<double> there({2 * groups});
    auto const copy = [&](void* to, void const* from, cudaMemcpyKind kind) {
      cuda::check(cudaMemcpyAsync(to, from, all.size() * sizeof(double), kind, gpu.home.get()),
                  "copy what was measured");
    };
    copy(there.data(), all.data(), cudaMemcpyHostToDevice);
    gpu.world.all_reduce(std::span(there.data(), there.size()), Reduction::sum)
        .wait(machine_.options().deadline_s);
    copy(all.data(), there.data(), cudaMemcpyDeviceToHost);
    for (stagger::detail::Backoff backoff; !gpu.home.idle(); backoff.pause()) {
    }
    std::copy_n(all.data(), groups, backward_s);
    std::copy_n(all.data() + groups, groups, sum_s);
  }

 private:
  static constexpr auto none = static_cast<std::size_t>(-1);

  [[nodiscard]] std::size_t cell_of(std::size_t stage, TeamEnd const& end) const noexcept {
    auto const& cells = machine_.program().cells;
    for (std::size_t c = 0; c < cells.size(); ++c)
      if (cells[c].stage == static_cast<int>(stage) &&
          links_.gpu_of(links_.distributed_state().rank_of(c)) == end.gpu)
        return c;
    return none;
  }

  /// The gradients of one layer at one end of a team.
  struct Block {
    stagger::detail::LayerParameters const& parameters;
    std::byte* first;
    std::size_t self;  // the end's part of them, of so many
    std::size_t parts;

    [[nodiscard]] std::span<std::byte> part(std::size_t p) const noexcept {
      auto const range = parameters.part(p, parts);
      return {first + range.first, range.last - range.first};
    }
    [[nodiscard]] std::size_t own_bytes() const noexcept { return part(self).size(); }
  };

  [[nodiscard]] bool by_library() const noexcept {
    return machine_.grouping().by == collective::By::library;
  }
  [[nodiscard]] bool in_slices(Team const& team) const noexcept {
    return !by_library() && team.places.size() > 2;
  }

  /// Visits the layers of a group that have gradients.
  template <class Visit>
  void each_block(Instruction const& in, TeamEnd const& end, Visit visit) const {
    auto const& group = machine_.program().groups[in.group];
    auto const& distributed_state = links_.distributed_state();
    int layer = 0;  // of the stage
    distributed_state.each_layer(cell_of(in.stage, end), [&](std::size_t l, auto* share) {
      int const here = layer++;
      auto const& parameters = distributed_state.parameters(l);
      if (here < group.lowest || here > group.highest || parameters.count() == 0) return;
      auto const* const views = share != nullptr ? share->views() : parameters.views();
      visit(Block{parameters, static_cast<std::byte*>(views[0].gradient),
                  static_cast<std::size_t>(end.all.rank()),
                  static_cast<std::size_t>(end.all.size())});
    });
  }

  void add_in_slices(Instruction const& in, Team& team) {
    swap(in, team,
         [](auto& all, auto& group, Block const& block, std::size_t peer,
            std::span<std::byte> taken) {
           all.send(group, block.part(peer), static_cast<int>(peer));
           return all.receive(group, taken, static_cast<int>(peer));
         });
    for (auto& end : team.ends) {
      links_.use(end->gpu);
      std::byte* taken = end->taken.data();
      each_block(in, *end, [&](Block const& block) {
        add_slice(block, taken, end->stream.get());
        taken += (block.parts - 1) * block.own_bytes();
      });
    }
    swap(in, team, [](auto& all, auto& group, Block const& block, std::size_t peer, auto) {
      all.send(group, block.part(block.self), static_cast<int>(peer));
      return all.receive(group, block.part(peer), static_cast<int>(peer));
    });
  }

  /// Calls `call(communicator, group, block, peer, memory for the peer's numbers)` for each other
  /// holder and each layer; all of it progresses together.
  template <class Call> void swap(Instruction const& in, Team& team, Call call) {
    links_.together([&] {
      for (auto& end : team.ends)
        end->last = links_.messages().add(end->gpu, end->stream, end->all, [&](auto& group) {
          Operation last;
          std::byte* taken = end->taken.data();
          each_block(in, *end, [&](Block const& block) {
            for (std::size_t peer = 0; peer < block.parts; ++peer) {
              if (peer == block.self) continue;
              last = call(end->all, group, block, peer, std::span(taken, block.own_bytes()));
              taken += block.own_bytes();
            }
          });
          return last;
        });
    });
  }

  /// own = the sum over holders, from the first to the last.
  /// @param taken  [holders but this one] their numbers
  void add_slice(Block const& block, std::byte* taken, cudaStream_t stream) const {
    auto const own = block.part(block.self);
    std::byte* const sum = block.self == 0 ? own.data() : taken;
    for (std::size_t holder = 1; holder < block.parts; ++holder) {
      std::size_t const slot = holder < block.self ? holder : holder - 1;
      add(block, sum, holder == block.self ? own.data() : taken + slot * own.size(), stream);
    }
    if (sum != own.data())
      cuda::check(cudaMemcpyAsync(own.data(), sum, own.size(), cudaMemcpyDeviceToDevice, stream),
                  "copy a sum of gradients");
  }
  /// sum += more, of this end's part; parameter by parameter, which may be of either type.
  void add(Block const& block, std::byte* sum, std::byte const* more, cudaStream_t stream) const {
    auto const own = block.parameters.part(block.self, block.parts);
    for (std::size_t p = 0; p < block.parameters.count(); ++p) {
      auto const range = block.parameters.range(p);
      std::size_t const first = std::max(range.first, own.first);
      std::size_t const last = std::min(range.last, own.last);
      if (first >= last) continue;
      ElementType const type = block.parameters.declaration(p).type;
      cuda::check(kernels_->add(type, sum + (first - own.first), more + (first - own.first),
                                (last - first) / element_bytes(type), stream),
                  "add gradients");
    }
  }

  [[nodiscard]] bool has_gradients(Instruction const& in, std::size_t cell) const {
    bool any = false;
    each_gradient(in, cell, [&any](auto) { any = true; });
    return any;
  }

  /// Visits the gradients of a group at a cell, as spans of their elements.
  template <class Visit>
  void each_gradient(Instruction const& in, std::size_t cell, Visit visit) const {
    auto const& group = machine_.program().groups[in.group];
    auto const& distributed_state = links_.distributed_state();
    std::size_t at = 0;  // layer of the stage
    distributed_state.each_layer(
        cell, [&](std::size_t l, stagger::detail::LayerParameters::Share* share) {
          auto const layer = static_cast<int>(at++);
          if (layer < group.lowest || layer > group.highest) return;
          auto const& parameters = distributed_state.parameters(l);
          auto const* const views = share != nullptr ? share->views() : parameters.views();
          for (std::size_t i = 0; i < parameters.count(); ++i) {
            if (views[i].size == 0) continue;
            if (parameters.value_bytes(i) == views[i].size * sizeof(float))
              visit(std::span(static_cast<float*>(views[i].gradient), views[i].size));
            else
              visit(std::span(static_cast<double*>(views[i].gradient), views[i].size));
          }
        });
  }

  stagger::detail::Machine& machine_;
  cuda::ParameterKernels const* kernels_;
  GpuSet& gpu_set_;
  Links& links_;
  std::vector<std::size_t> team_of_;      // [stages] number of its team
  std::vector<std::size_t> first_group_;  // [stages]
  std::vector<std::size_t> ready_;        // [cells] signal that its gradients are there
  std::vector<bool> begun_;               // [groups] in this step
};

}  // namespace stagger::nccl::detail
