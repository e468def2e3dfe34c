// SPDX-License-Identifier: Apache-2.0
// A byte-level transformer, trained in a pipeline of stages. `gpt --help` explains the flags.

#include <cstdio>
#include <exception>
#include <new>

#include "cuda/train.hpp"
#include "profile.hpp"
#include "train.hpp"

int main(int argc, char** argv) {
  constexpr int cannot_be_used = 2;
  try {
    auto const settings = gpt::parse(argc, argv);
    if (!settings) return 0;
    if (!settings->profile.empty()) {
      gpt::write_profile(*settings, GPT_SOURCES);
      return 0;
    }
    if (settings->on_gpu()) return static_cast<int>(gpt::train_on_gpu(*settings, GPT_SOURCES));
    return static_cast<int>(gpt::train(*settings, GPT_SOURCES));
  } catch (std::bad_alloc const&) {
    std::fputs(
        "gpt: there is not enough memory; use a smaller --width, --layers, --context or --batch\n",
        stderr);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "gpt: %s\n", error.what());
  }
  return cannot_be_used;
}
