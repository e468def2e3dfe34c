// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The assignment of ranks to processes.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/core/list.hpp>
#include <stagger/program/program.hpp>

namespace stagger::mpi::detail {

class Placement {
 public:
  Placement() = default;
  /// @param process_of  [ranks]
  /// @param here        the process that asks
  Placement(std::vector<int> const& process_of, int processes, int here) {
    assign(process_of, processes, here);
  }
  /// Becomes another placement, in the memory of this one if that is enough.
  void assign(std::vector<int> const& process_of, int processes, int here) {
    process_of_.assign(process_of.data(), process_of.size());
    runs_.assign(process_of.size() * static_cast<unsigned>(processes), false);
    ranks_ = static_cast<int>(process_of.size());
    processes_ = processes;
    here_ = here;
    for (int r = 0; r < ranks_; ++r) runs_[process_of_[r] * ranks_ + r] = true;
  }

  [[nodiscard]] bool empty() const noexcept { return process_of_.empty(); }
  [[nodiscard]] int ranks() const noexcept { return ranks_; }
  [[nodiscard]] int processes() const noexcept { return processes_; }
  [[nodiscard]] int here() const noexcept { return here_; }
  [[nodiscard]] int process_of(int rank) const { return process_of_[rank]; }
  [[nodiscard]] bool is_here(int rank) const { return process_of_[rank] == here_; }
  /// The first rank of this process. @pre it has one
  [[nodiscard]] int first_here() const {
    return static_cast<int>(std::find(process_of_.begin(), process_of_.end(), here_) -
                            process_of_.begin());
  }
  /// [ranks] whether a process runs each.
  [[nodiscard]] bool const* runs(int process) const noexcept {
    return runs_.data() + process * ranks_;
  }
  [[nodiscard]] bool const* runs_here() const noexcept { return runs(here_); }

  /// The processes that hold a stage, in rising order, each once.
  [[nodiscard]] List<int> holders(Program const& program, int stage) const {
    List<int> found;
    for (int p = 0; p < processes_; ++p)
      for (Cell const& cell : program.cells)
        if (cell.stage == stage && process_of_[cell.rank] == p) {
          found.push_back(p);
          break;
        }
    return found;
  }

 private:
  List<int> process_of_{};  // [ranks]
  List<bool> runs_{};       // [processes][ranks]
  int ranks_ = 0;
  int processes_ = 0;
  int here_ = 0;
};

}  // namespace stagger::mpi::detail
