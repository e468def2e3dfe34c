// SPDX-License-Identifier: Apache-2.0
// A byte-level transformer, trained with pipeline parallelism. `gpt --help` explains the flags.

#include <chrono>
#include <exception>
#include <thread>

#include <stagger/collective/launcher.hpp>

#include "cuda/train.hpp"
#include "profile.hpp"
#include "train.hpp"

namespace {

/// Refuses to run in several processes without --device mpi, in which they would all write to the
/// same folders.
void require_alone(gpt::Settings const& settings) {
  auto const launch = stagger::collective::find_launch();
  if (!launch || launch->size == 1 || settings.over_mpi()) return;
  stagger::raise(stagger::Errc::bad_configuration, launch->launcher, " started ", launch->size,
                 " processes, and each would train the whole model; add --device mpi to train one "
                 "pipeline in all of them, or start one process");
}

/// Whether this is one of several processes, and not the first. All of them find the same errors on
/// the command line, and the first prints them.
bool another_reports() noexcept {
  try {
    auto const launch = stagger::collective::find_launch();
    return launch && launch->rank > 0;
  } catch (stagger::Error const&) {
    return false;
  }
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int cannot_be_used = 2;
  bool parsed = false;
  try {
    auto const settings = gpt::parse(argc, argv);
    if (!settings) return 0;
    require_alone(*settings);
    parsed = true;
    if (!settings->profile.empty()) {
      gpt::write_profile(*settings, GPT_SOURCES);
      return 0;
    }
    if (settings->on_gpu()) return static_cast<int>(gpt::train_on_gpu(*settings, GPT_SOURCES));
    return static_cast<int>(gpt::train(*settings, GPT_SOURCES));
  } catch (std::exception const& error) {
    // The launcher ends all processes as soon as one has ended with an error. A process that is still
    // there some seconds later has an error of its own, such as a file that its machine lacks.
    if (!parsed && another_reports()) std::this_thread::sleep_for(std::chrono::seconds(5));
    gpt::print_error(error);
  }
  return cannot_be_used;
}
