// SPDX-License-Identifier: Apache-2.0
// Workers as processes of MPI, which this program starts if nobody has. The parameter server lies in
// all of them.
#include "team.hpp"

#include "command_line.hpp"

#ifndef HETERO_HAS_MPI

hetero::Run hetero::train_over_mpi(Settings const&, double, Train const&) { return {}; }

std::optional<int> hetero::start_processes(Settings& s, int, char**) {
  if (s.device == "mpi")
    cli::refuse("--device mpi needs an MPI, without which this program was built");
  return std::nullopt;
}

#else

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include <stagger/collective/launcher.hpp>
#include <stagger/mpi/parameter_server.hpp>
#include <stagger/mpi/session.hpp>

#include "../under_mpirun.hpp"
#include "staleness_models.hpp"

namespace hetero {

namespace sg = stagger;

namespace {

/// All processes, and what they do at the same time. MPI is initialised from the first use to the
/// end of the program. What is sent and received outlives a call that fails, which MPI may still
/// write to.
class World {
 public:
  static World& get() {
    static World world;
    return world;
  }

  /// Whether any process says so.
  bool any(bool here) {
    mine_ = here ? 1 : 0;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(&mine_, &max_, 1, MPI_INT, MPI_MAX, processes_, &request);
    wait(request, "made their workers");
    return max_ != 0;
  }
  /// What each process tells all.
  void exchange(sg::ByteWriter report, Reports& reports) {
    told_ = std::move(report);
    mine_ = static_cast<int>(told_.size());
    lengths_.resize(static_cast<std::size_t>(size));
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallgather(&mine_, 1, MPI_INT, lengths_.data(), 1, MPI_INT, processes_, &request);
    wait(request, "ended their work");
    starts_.clear();
    int bytes = 0;
    for (int const length : lengths_) starts_.push_back(std::exchange(bytes, bytes + length));
    heard_.resize(static_cast<std::size_t>(bytes));
    MPI_Iallgatherv(told_.data(), mine_, MPI_BYTE, heard_.data(), lengths_.data(), starts_.data(),
                    MPI_BYTE, processes_, &request);
    wait(request, "told what they did");
    for (std::size_t p = 0; p < lengths_.size(); ++p)
      reports.add({heard_.data() + starts_[p], static_cast<std::size_t>(lengths_[p])});
  }

  int rank = 0;
  int size = 1;

 private:
  World() {
    MPI_Comm_dup(MPI_COMM_WORLD, &processes_);
    MPI_Comm_rank(processes_, &rank);
    MPI_Comm_size(processes_, &size);
  }

  static void wait(MPI_Request& request, char const* what) {
    auto const start = std::chrono::steady_clock::now();
    for (int done = 0;;) {
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (done != 0) return;
      if (std::chrono::steady_clock::now() - start > std::chrono::minutes(15))
        sg::raise(sg::Errc::deadline, "not all processes have ", what,
                  " within 15 minutes; look for one that hangs");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  sg::mpi::Session session_{sg::mpi::Threads::multiple};
  MPI_Comm processes_ = MPI_COMM_NULL;
  int mine_ = 0;
  int max_ = 0;
  sg::ByteWriter told_;
  std::vector<int> lengths_, starts_;
  std::vector<std::byte> heard_;
};

}  // namespace

std::optional<int> start_processes(Settings& s, int argc, char** argv) {
  if (s.device != "mpi") return std::nullopt;
  if (!sg::collective::find_launch())
    return cli::run_under_mpirun(HETERO_MPIEXEC, s.workers, argc, argv);
  if (World::get().rank == 0) return std::nullopt;
  s.csv.clear();
  s.trace.clear();
  s.chart.clear();
  cli::say_nothing();
  return std::nullopt;
}

Run train_over_mpi(Settings const& s, double rate, Train const& train) {
  World& world = World::get();
  Team team;
  auto const workers = static_cast<std::size_t>(s.workers);
  for (auto n = static_cast<std::size_t>(world.rank); n < workers;
       n += static_cast<std::size_t>(world.size))
    team.own.push_back(n);
  std::optional<sg::mpi::ParameterServer> server;  // until all have ended
  bool met = false;
  team.worker = [&](std::size_t n) { return server->worker(static_cast<int>(n)); };
  team.start = [&] {
    met = true;
    if (world.any(false))
      sg::raise(sg::Errc::peer_failed, "another process could not make its workers");
  };
  sg::ByteWriter report;
  try {
    server.emplace(sg::mpi::ServerOptions{.workers = static_cast<int>(s.workers)},
                   sg::optimizer::Sgd{.rate = rate}, overlapped(numbers_of(s)));
    Run run;
    run.workers.resize(workers);
    train(team, run);
    report = report_of(team, run);
  } catch (...) {
    report = report_of(std::current_exception());
  }
  if (!met) world.any(true);
  Reports reports(workers);
  world.exchange(std::move(report), reports);
  return reports.take();
}

}  // namespace hetero

#endif
