// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A program that starts itself in several processes of MPI, of which the first one speaks.

#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <stagger/core/error.hpp>

namespace cli {

/// Starts this program under mpirun, in so many processes, and waits for it. Exit codes of
/// mpirun differ from one MPI to another; where no process has said what is wrong, this does.
/// @param mpiexec  the command
/// @return what it ended with
[[nodiscard]] inline int run_under_mpirun(std::string const& mpiexec, std::int64_t processes,
                                          int argc, char** argv) {
  namespace sg = stagger;
  std::vector<std::string> words{mpiexec};
#ifdef OPEN_MPI
  // Reading each other's memory prints what a process saw of one that was killed, or may not read.
  words.insert(words.end(), {"--quiet", "--oversubscribe", "--bind-to", "none", "--mca",
                             "btl_vader_single_copy_mechanism", "none"});
  if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
#endif
  words.insert(words.end(), {"-n", std::to_string(processes)});
  words.insert(words.end(), argv, argv + argc);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::pid_t const parent = ::getpid();
  ::pid_t const pid = ::fork();
  if (pid < 0)
    sg::raise(sg::Errc::io, "cannot start mpirun: ", std::strerror(errno), "; end other programs");
  if (pid == 0) {
#ifdef __linux__
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // on which it ends all processes
#endif
    if (::getppid() != parent) ::_exit(2);
    int const nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, STDIN_FILENO);
    ::execvp(pointers[0], pointers.data());
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  int const code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (code == 0 || code == 2) return code;
  if (code == 127)
    sg::raise(sg::Errc::io, "cannot start '", words[0], "'; install mpirun, or start ", argv[0],
              " with another launcher of MPI");
  if (code > 128)
    sg::raise(sg::Errc::io, "a process that mpirun started was killed by signal ", code - 128, " (",
              ::strsignal(code - 128), ")");
  sg::raise(sg::Errc::io, "mpirun ended with code ", code, "; try: ", words[0], " -n ", processes,
            " hostname");
}

/// From now on this process prints nothing.
inline void say_nothing() {
  for (std::FILE* const stream : {stdout, stderr})
    if (std::freopen("/dev/null", "w", stream) == nullptr)
      stagger::raise(stagger::Errc::io, "cannot write to /dev/null");
}

}  // namespace cli
