// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks for tests: on threads of their own, or polled in turn on one.

#include <exception>
#include <thread>
#include <vector>

#include <stagger/collective/in_process.hpp>

namespace collective_test {

/// Runs `work(communicator)` once per rank, each on its thread; rethrows the first error by rank
/// unless told not to.
template <class Work>
void on_threads(int ranks, Work&& work, bool may_throw = false,
                stagger::collective::InProcess policy = {}) {
  auto world = policy.connect(ranks);
  std::vector<std::exception_ptr> errors(world.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < world.size(); ++r) {
    threads.emplace_back([&, r, c = std::move(world[r])]() mutable {
      try {
        auto mine = std::move(c);
        work(mine);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (auto& t : threads) t.join();
  for (auto const& e : errors) {
    if (e && !may_throw) std::rethrow_exception(e);
  }
}

/// Polls operations of ranks that share this thread, in turn, until all are done.
template <class Operation> void poll_all(std::vector<Operation>& operations) {
  for (bool done = false; !done;) {
    done = true;
    for (auto& op : operations) done = op.poll() && done;
  }
}

}  // namespace collective_test
