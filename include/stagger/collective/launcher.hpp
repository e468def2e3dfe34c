// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The rank of this process and the number of processes, as set by the program's launcher.

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <system_error>

#include <stagger/core/error.hpp>

namespace stagger::collective {

/// What the launcher's environment variables say.
struct Launch {
  char const* launcher = "";  ///< "torchrun", "Open MPI", "PMI" or "Slurm"
  int rank = 0;               ///< 0 <= rank < size
  int size = 1;
  int local_rank = -1;     ///< among the processes of this machine; -1: unknown
  int local_size = -1;     ///< processes of this machine; -1: unknown
  std::string address{};   ///< of rank 0's machine (MASTER_ADDR); empty: unknown
  int port = 0;            ///< on that machine (MASTER_PORT); 0: unknown
  bool port_held = false;  ///< the launcher itself listens on that port, as torchrun does
  std::string run{};       ///< the launcher's name of this run, the same in all ranks; may be empty
};

namespace detail {

/// Reads the variables of launchers by `get(name) -> char const*`, which is std::getenv, or a
/// test's replacement.
template <class Get> class LauncherReader {
 public:
  explicit LauncherReader(Get get) : get_(get) {}

  [[nodiscard]] bool has(char const* name) const { return get_(name) != nullptr; }
  [[nodiscard]] std::string text_of(char const* name) const { return has(name) ? get_(name) : ""; }

  [[nodiscard]] int number(char const* launcher, char const* name, int least, int most) const {
    char const* const words = get_(name);
    int value = 0;
    char const* const end = words + std::strlen(words);
    auto const result = std::from_chars(words, end, value);
    if (result.ec == std::errc() && result.ptr == end && value >= least && value <= most) {
      return value;
    }
    raise(Errc::bad_configuration, name, " of ", launcher, " is '", words,
          "'; it must be a number from ", least, " to ", most);
  }

  /// What the variables of a launcher say; nothing if it has set neither `rank` nor `size`.
  /// @param further  variables without which the set is incomplete, besides these two
  [[nodiscard]] std::optional<Launch> read(char const* launcher, char const* rank, char const* size,
                                           char const* local_rank, char const* local_size,
                                           std::initializer_list<char const*> further = {}) const {
    if (!has(rank) && !has(size)) return std::nullopt;
    std::string missing;
    std::string found;
    auto const look_for = [&](char const* name) {
      if (has(name))
        found += text(found.empty() ? "" : ", ", name, "=", get_(name));
      else
        missing += text(missing.empty() ? "" : ", ", name);
    };
    for (char const* name : {rank, size}) look_for(name);
    for (char const* name : further) look_for(name);
    if (!missing.empty())
      raise(Errc::bad_configuration, "the environment of ", launcher, " lacks ", missing,
            "; found ", found, "; start every rank with the launcher, or unset what it left");
    constexpr int most = 1 << 24;
    Launch launch;
    launch.launcher = launcher;
    launch.size = number(launcher, size, 1, most);
    launch.rank = number(launcher, rank, 0, most);
    if (launch.rank >= launch.size) {
      raise(Errc::bad_configuration, "the environment of ", launcher, " is wrong: ", rank, " is ",
            launch.rank, ", but ", size, " is ", launch.size, "; ranks are 0 to ", launch.size - 1);
    }
    if (has(local_rank)) {
      launch.local_rank = number(launcher, local_rank, 0, launch.size - 1);
    }
    if (has(local_size)) {  // Slurm's may be meant for a larger step
      launch.local_size = std::min(number(launcher, local_size, 1, most), launch.size);
    }
    if (has("MASTER_ADDR")) launch.address = get_("MASTER_ADDR");
    if (has("MASTER_PORT")) launch.port = number(launcher, "MASTER_PORT", 1, 65535);
    return launch;
  }

 private:
  Get get_;
};

}  // namespace detail

/// Reads what launched this process: torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), Open
/// MPI (OMPI_COMM_WORLD_*), a process manager of MPICH's kind (PMI_*), or Slurm (SLURM_PROCID,
/// SLURM_NTASKS). The launcher nearest to the program wins: mpirun within an allocation of Slurm
/// counts as Open MPI, and torchrun's agents may themselves be started by any of the others. Two
/// launchers that are equally near must agree.
/// @param  get  maps names to values, or to nullptr: std::getenv, or a test's replacement
/// @return  nothing if no launcher has set a variable
/// @throws Error  Errc::bad_configuration for an incomplete set, a value that is not a rank, a rank
///                that is not below the size, or two launchers that disagree; the text lists the
///                variables found
template <class Get> [[nodiscard]] std::optional<Launch> find_launch(Get get) {
  detail::LauncherReader const reader(get);
  std::optional<Launch> near;
  auto const take = [&](std::optional<Launch> const& next) {
    if (next && near && (near->rank != next->rank || near->size != next->size)) {
      raise(Errc::bad_configuration, near->launcher, " says rank ", near->rank, " of ", near->size,
            ", but ", next->launcher, " says rank ", next->rank, " of ", next->size,
            "; unset the variables of the one that did not start this program");
    }
    if (!near) near = next;
    return next.has_value();
  };
  if (take(reader.read("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                       {"MASTER_ADDR", "MASTER_PORT"}))) {
    near->run = reader.text_of("TORCHELASTIC_RUN_ID");
    near->port_held = reader.text_of("TORCHELASTIC_USE_AGENT_STORE") == "True";
    if (!near->run.empty()) return near;  // its agent has set all of these variables
  }
  if (take(reader.read("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                       "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")) &&
      near->run.empty())
    near->run = reader.text_of("PMIX_NAMESPACE");
  if (take(reader.read("PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")) &&
      near->run.empty())
    near->run = reader.text_of("PMI_JOBID");
  if (near) return near;  // an allocation of Slurm says nothing of what mpirun started within it
  if (take(reader.read("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
                       "SLURM_NTASKS_PER_NODE"))) {
    if (reader.has("SLURM_JOB_ID"))  // a step of a job, which may have been started again
      near->run = text(reader.text_of("SLURM_JOB_ID"), ".", reader.text_of("SLURM_STEP_ID"), ".",
                       reader.text_of("SLURM_RESTART_COUNT"));
  }
  return near;
}

/// The same from the environment of this process.
[[nodiscard]] inline std::optional<Launch> find_launch() {
  return find_launch([](char const* name) -> char const* { return std::getenv(name); });
}

}  // namespace stagger::collective
