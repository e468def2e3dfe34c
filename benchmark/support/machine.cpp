// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include <ctime>
#include <fstream>
#include <string>
#include <thread>

#include <tbb/version.h>

#include "rows.hpp"

namespace bench {
namespace {

/// The value of the first line of a file that starts with `key`.
std::string look_up(char const* file, std::string const& key, char separator) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    auto const value = line.find_first_not_of(" \"", line.find(separator) + 1);
    return value == std::string::npos ? ""
                                      : line.substr(value, line.find_last_not_of('"') + 1 - value);
  }
  return "unknown";
}

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "g++ " __VERSION__;
#else
  return "an unknown compiler";
#endif
}

}  // namespace

std::string machine() {
  std::string load = "unknown";
  std::ifstream("/proc/loadavg") >> load;
  std::time_t const now = std::time(nullptr);
  char date[32] = "";
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  return look_up("/proc/cpuinfo", "model name", ':') + ", " +
         std::to_string(std::thread::hardware_concurrency()) + " cores; " + compiler() +
         " " BENCH_FLAGS "; oneTBB " + TBB_runtime_version() + "; " +
         look_up("/etc/os-release", "PRETTY_NAME", '=') + "; load " + load + "; " + date;
}

}  // namespace bench
