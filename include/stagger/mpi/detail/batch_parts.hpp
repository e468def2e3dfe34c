// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The parts of a batch that the ranks of each process read, and what the processes tell each
///         other about these parts before a step.

#include <algorithm>
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
  bool tells_inputs = false;  // whether digests of inputs say all that these contain
  bool check = true;
  bool own_rows = false;
};

/// One block of rows that the ranks of one process read. own == 0: none.
struct ReadRows {
  std::uint64_t before = 0;
  std::uint64_t own = 0;
  std::uint64_t total = 1;
  [[nodiscard]] RowShare share() const noexcept { return {before, own, total}; }
  [[nodiscard]] std::uint64_t end() const noexcept { return before + own; }
  [[nodiscard]] bool holds(RowShare const& rows) const noexcept {
    return rows.total == total && before <= rows.before && rows.before + rows.own <= end();
  }
  /// Adds rows that begin or end in the block, or next to it.
  /// @return whether the block has become larger
  bool grow(RowShare const& rows) noexcept {
    std::uint64_t const rows_end = rows.before + rows.own;
    if (own == 0) {
      *this = {rows.before, rows.own, rows.total};
      return true;
    }
    if (holds(rows) || rows.total != total || rows.before > end() || rows_end < before)
      return false;
    std::uint64_t const last = std::max(end(), rows_end);
    before = std::min(before, rows.before);
    own = last - before;
    return true;
  }
  friend bool operator==(ReadRows const&, ReadRows const&) = default;
};

/// Of the inputs or of the targets: which rows each process reads.
class Readers {
 public:
  /// @param reads  whether a cell reads the caller's value
  template <class Reads>
  void load(Program const& program, Placement const& placement, Reads reads) {
    rows_.assign(static_cast<unsigned>(placement.processes()), {});
    for (bool grown = true; grown;) {  // cells come by stage, of which the members of a group have
      grown = false;                   // several, so not always in the order of their rows
      for (Cell const& cell : program.cells)
        if (reads(cell) && rows_[placement.process_of(cell.rank)].grow(cell.rows)) grown = true;
    }
    Cell const* first = nullptr;
    one_block_ = true;
    for (Cell const& cell : program.cells) {
      if (!reads(cell)) continue;
      if (first == nullptr) first = &cell;
      one_block_ = one_block_ && cell.position == first->position &&
                   cell.rows.total == first->rows.total &&
                   rows_[placement.process_of(cell.rank)].holds(cell.rows);
    }
    find_whole(first == nullptr ? 0 : first->rows.total);
  }
  [[nodiscard]] ReadRows const& of(int process) const { return rows_[process]; }
  [[nodiscard]] int processes() const noexcept { return static_cast<int>(rows_.size()); }
  /// Whether the rows of each process are one block, the same for every microbatch.
  [[nodiscard]] bool one_block() const noexcept { return one_block_; }
  /// Whether the rows of some processes, one after the other, are a whole microbatch.
  [[nodiscard]] bool add_up() const noexcept { return !whole_.empty(); }

  /// Adds up a number of each process over the processes whose rows are a whole microbatch.
  template <class T, class NumberOf> [[nodiscard]] T sum(NumberOf number_of) const {
    T all{};
    for (int const p : whole_) all += number_of(p);
    return all;
  }

 private:
  /// Members of a group read the same rows, so that blocks of processes may overlap: searches for a
  /// chain of blocks from the last row to the first.
  void find_whole(std::uint64_t total) {
    constexpr int unseen = -2;
    constexpr int none = -1;
    next_.assign(rows_.size(), unseen);
    seen_.clear();
    auto const look = [&](std::uint64_t end, int then) {
      for (int p = 0; p < processes(); ++p)
        if (rows_[p].own != 0 && next_[p] == unseen && rows_[p].end() == end) {
          next_[p] = then;
          seen_.push_back(p);
        }
    };
    whole_.clear();
    look(total, none);
    for (std::size_t i = 0; i < seen_.size() && whole_.empty(); ++i) {
      if (rows_[seen_[i]].before == 0)
        for (int p = seen_[i]; p != none; p = next_[p]) whole_.push_back(p);
      else
        look(rows_[seen_[i]].before, seen_[i]);
    }
  }

  List<ReadRows> rows_{};  // [processes]
  List<int> whole_{};      // processes whose rows are a whole microbatch, in the order of rows
  List<int> next_{};       // [processes] in a chain of blocks
  List<int> seen_{};       // processes that are in a chain
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
    bool const blocks = inputs_.one_block() && targets_.one_block();
    if (shares_rows() && (!blocks || !inputs_.add_up() || !targets_.add_up()))
      raise(Errc::bad_configuration,
            blocks ? "processes read some rows of each microbatch together, and others apart"
                   : "the rows that a process reads are not one block of each microbatch",
            ", because of the schedule or the placement; leave mpi::Processes::own_rows out, and "
            "give all processes whole batches");
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
  /// Whether another process must be given the same inputs as this one, or the same targets.
  [[nodiscard]] bool same_inputs(int process) const { return same(inputs_, process); }
  [[nodiscard]] bool same_targets(int process) const { return same(targets_, process); }
  /// Whether another process must be given other inputs than this one: other rows, if it has any.
  [[nodiscard]] bool other_inputs(int process) const {
    ReadRows const& theirs = inputs_.of(process);
    ReadRows const& own = inputs_.of(here_);
    if (!rules_.tells_inputs || !shares_rows() || theirs.own == 0 || own.own == 0 || theirs == own)
      return false;
    std::size_t rows = 0;
    for (std::size_t m = 0; m < rows_.size(); ++m) rows += of(process)[m].rows;
    return rows != 0;
  }

 private:
  /// What a process has told about a microbatch.
  struct Told {
    std::size_t rows = 0;
    double terms = 0;
  };

  /// Of rows that no rank reads, a process may give what it likes.
  [[nodiscard]] bool same(Readers const& readers, int process) const {
    ReadRows const& own = readers.of(here_);
    return !shares_rows() || (own.own != 0 && readers.of(process) == own);
  }
  [[nodiscard]] Told* of(int process) noexcept {
    return told_.data() + static_cast<unsigned>(process) * rows_.size();
  }
  [[nodiscard]] Told const* of(int process) const noexcept {
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
