// SPDX-License-Identifier: Apache-2.0
#include "team.hpp"

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>

namespace hetero {

namespace sg = stagger;

Run train_in_team(Settings const& s, double rate, Train const& train) {
  if (s.device == "tcp") return train_over_tcp(s, rate, train);
  if (s.device == "mpi") return train_over_mpi(s, rate, train);
  sg::collective::ParameterServer const server({.workers = static_cast<int>(s.workers)});
  Team team{std::vector<std::size_t>(static_cast<std::size_t>(s.workers)),
            [&](std::size_t n) { return server.worker(static_cast<int>(n)); }, [] {}};
  std::iota(team.own.begin(), team.own.end(), std::size_t{0});
  Run run;
  run.workers.resize(team.own.size());
  train(team, run);
  return run;
}

sg::ByteWriter report_of(Team const& team, Run const& run) {
  sg::ByteWriter out;
  out.add(true);
  out.add(run.held_out);
  for (std::size_t const n : team.own) {
    out.add(n);
    sg::Portable<WorkerRun>::write(out, run.workers[n]);
  }
  return out;
}

sg::ByteWriter report_of(std::exception_ptr const& failure) {
  sg::Errc code = sg::Errc::bad_configuration;
  std::string words = "a process failed for no reason that is known";
  try {
    std::rethrow_exception(failure);
  } catch (sg::Error const& error) {
    code = error.code();
    words = error.what();
  } catch (std::exception const& error) {
    words = error.what();
  } catch (...) {  // the words say so
  }
  sg::ByteWriter out;
  out.add(false);
  out.add(code);
  out.add(words.data(), words.size());
  return out;
}

void Reports::add(std::span<std::byte const> report) {
  sg::ByteReader in(report.data(), report.size());
  if (!in.take<bool>()) {
    auto const code = in.take<sg::Errc>();
    std::string words(in.left(), ' ');
    in.take(words.data(), words.size());
    return fail({code, words});
  }
  auto const held_out = in.take<double>();
  while (in.left() != 0) {
    auto const n = in.take<std::size_t>();
    if (n == 0) run_.held_out = held_out;
    sg::Portable<WorkerRun>::read(in, run_.workers.at(n));
  }
}

void Reports::fail(sg::Error const& why) {
  if (!explained()) failure_ = why;
}

bool Reports::explained() const { return failure_ && failure_->code() != sg::Errc::peer_failed; }

Run Reports::take() {
  if (failure_) throw *failure_;
  return std::move(run_);
}

}  // namespace hetero
