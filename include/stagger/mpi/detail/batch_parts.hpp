// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The parts of a batch that the ranks of each process read, and what the processes tell each
///         other about these parts before a step.

#include <cstddef>
#include <cstdint>
#include <utility>

#include <stagger/core/content_digest.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/list.hpp>
#include <stagger/core/portable.hpp>
#include <stagger/engine/machine.hpp>
#include <stagger/mpi/detail/channels.hpp>
#include <stagger/mpi/detail/placement.hpp>
#include <stagger/program/program.hpp>

namespace stagger::mpi::detail {

/// How a device treats batches.
struct BatchRules {
  stagger::detail::BatchContents contents{};
  bool check = true;
  bool own_rows = false;
};

/// Rows that the ranks of one process read. own == 0: none.
struct ReadRows {
  std::uint64_t before = 0;
  std::uint64_t own = 0;
  std::uint64_t total = 1;
  [[nodiscard]] RowShare share() const noexcept { return {before, own, total}; }
  friend bool operator==(ReadRows const&, ReadRows const&) = default;
};

/// Of the inputs or of the targets: which rows each process reads.
class Readers {
 public:
  /// @param reads  whether a cell reads the caller's value
  template <class Reads>
  void load(Program const& program, Placement const& placement, Reads reads) {
    rows_.assign(static_cast<unsigned>(placement.processes()), {});
    one_block_ = true;
    int position = -1;
    for (Cell const& cell : program.cells) {
      if (!reads(cell)) continue;
      one_block_ = one_block_ && (position < 0 || position == cell.position);
      position = cell.position;
      add(rows_[placement.process_of(cell.rank)], cell.rows);
    }
  }
  [[nodiscard]] ReadRows const& of(int process) const { return rows_[process]; }
  [[nodiscard]] int processes() const noexcept { return static_cast<int>(rows_.size()); }
  /// Whether the rows of each process are one block, the same for every microbatch.
  [[nodiscard]] bool one_block() const noexcept { return one_block_; }

  /// Adds up a number of each process over the processes whose rows are a whole microbatch.
  template <class T, class NumberOf> [[nodiscard]] T sum(NumberOf number_of) const {
    T all{};
    for (std::uint64_t next = 0, total = 1; next < total;) {
      int p = 0;
      while (rows_[p].own == 0 || rows_[p].before != next) ++p;
      all += number_of(p);
      total = rows_[p].total;
      next += rows_[p].own;
    }
    return all;
  }

 private:
  /// Cells come in the order of their rows.
  void add(ReadRows& to, RowShare const& rows) {
    bool const same = to.before <= rows.before && rows.before + rows.own <= to.before + to.own;
    if (to.own == 0)
      to = {rows.before, rows.own, rows.total};
    else if (to.total == rows.total && rows.before == to.before + to.own)
      to.own += rows.own;
    else if (to.total != rows.total || !same)
      one_block_ = false;
  }

  List<ReadRows> rows_{};  // [processes]
  bool one_block_ = true;
};

/// What this process is given of a batch, and what the others are.
class BatchParts {
 public:
  BatchParts(stagger::detail::Machine& machine, BatchRules const& rules)
      : machine_(machine), rules_(rules) {}

  void load(Placement const& placement) {
    Program const& program = machine_.program();
    here_ = placement.here();
    inputs_.load(program, placement, [](Cell const& cell) {
      return cell.before == Cell::none && (!cell.gathers_input || cell.depth == 0);
    });
    targets_.load(program, placement, [](Cell const& cell) { return cell.last(); });
    rows_.assign(static_cast<unsigned>(program.microbatches), 0);
    told_.assign(rows_.size() * static_cast<unsigned>(placement.processes()), {});
    if (shares_rows() && (!inputs_.one_block() || !targets_.one_block()))
      raise(Errc::bad_configuration,
            "the rows that a process reads are not one block of each microbatch, because of the "
            "schedule or the placement; leave mpi::Processes::own_rows out, and give all processes "
            "whole batches");
  }

  /// Whether processes are given rows of their own.
  [[nodiscard]] bool shares_rows() const noexcept {
    return rules_.own_rows && machine_.options().replicas.share_rows();
  }

  /// Refuses a batch in which something is missing that this process needs.
  void require(stagger::detail::StepArguments const& step) const {
    bool const replicas = machine_.options().replicas.share_rows() && !shares_rows();
    if (step.inputs.first == nullptr && (replicas || inputs_.of(here_).own != 0))
      raise(Errc::bad_configuration, "process ", here_,
            replicas ? " needs the inputs, whose rows replicas divide"
                     : " runs the first stage and needs the inputs",
            "; give it them",
            replicas ? ", or each process only its own rows, with mpi::Processes::own_rows" : "");
    if (step.loss != nullptr && step.targets.first == nullptr && targets_.of(here_).own != 0)
      raise(Errc::bad_configuration, "process ", here_,
            " runs the last stage and needs the targets; give it them");
  }

  /// Writes the rows and the terms that this process is given.
  void tell(ByteWriter& out, stagger::detail::StepArguments const& step, double const* terms) {
    auto const& input = *machine_.model.layers[0].ops().input;
    Told* const own = of(here_);
    for (std::size_t m = 0; m < rows_.size(); ++m)
      own[m] = {step.inputs.first == nullptr ? 0 : input.rows(step.inputs[m]),
                step.loss == nullptr ? 0 : terms[m]};
    out.add(own, rows_.size() * sizeof(Told));
  }
  void take(ByteReader& in, int process) { in.take(of(process), rows_.size() * sizeof(Told)); }
  /// Once all have told: completes what this process was given.
  /// @param terms  [microbatches] receives those of whole microbatches
  void complete(stagger::detail::StepArguments& step, double* terms) {
    for (std::size_t m = 0; m < rows_.size(); ++m) {
      rows_[m] = inputs_.sum<std::size_t>([&](int p) { return of(p)[m].rows; });
      for (int p = 0; p < inputs_.processes(); ++p) require_rows(p, m);
      if (step.loss != nullptr)
        terms[m] = targets_.sum<double>([&](int p) { return of(p)[m].terms; });
    }
    step.rows = rows_.data();
    if (inputs_.of(here_).own != 0) step.input_rows = inputs_.of(here_).share();
    if (targets_.of(here_).own != 0) step.target_rows = targets_.of(here_).share();
  }

  /// Digests of what the machine's step is given; 0 where that is nothing, or not compared.
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> digests() const {
    stagger::detail::StepArguments const& step = machine_.arguments();
    auto const of = [&](stagger::detail::AddContent add, stagger::detail::Places const& values) {
      return !rules_.check || add == nullptr || values.first == nullptr
                 ? 0
                 : stagger::detail::content_digest(add, values.first, values.stride, rows_.size());
    };
    return {of(rules_.contents.input, step.inputs), of(rules_.contents.target, step.targets)};
  }
  /// Whether another process is given the same as this one.
  [[nodiscard]] bool same_inputs(int process) const {
    return !shares_rows() || inputs_.of(process) == inputs_.of(here_);
  }
  [[nodiscard]] bool same_targets(int process) const {
    return !shares_rows() || targets_.of(process) == targets_.of(here_);
  }

 private:
  /// What a process has told about a microbatch.
  struct Told {
    std::size_t rows = 0;
    double terms = 0;
  };

  [[nodiscard]] Told* of(int process) noexcept {
    return told_.data() + static_cast<unsigned>(process) * rows_.size();
  }
  void require_rows(int process, std::size_t m) {
    ReadRows const& reads = inputs_.of(process);
    if (reads.own == 0) return;
    std::size_t const wanted = stagger::detail::rows_of(rows_[m], reads.share()).count();
    if (wanted == of(process)[m].rows) return;
    raise(Errc::mismatch, "process ", process, " gives ", of(process)[m].rows, " of the ", rows_[m],
          " rows that microbatch ", m, " has in all processes, but its replicas work on ", wanted,
          "; give it that many");
  }

  stagger::detail::Machine& machine_;
  BatchRules rules_;
  Readers inputs_{};
  Readers targets_{};
  List<std::size_t> rows_{};  // [microbatches] of whole ones
  List<Told> told_{};         // [processes][microbatches]
  int here_ = 0;
};

}  // namespace stagger::mpi::detail
