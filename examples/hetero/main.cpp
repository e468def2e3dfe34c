// SPDX-License-Identifier: Apache-2.0
// Workers that train one model through a parameter server. `hetero --help` explains the flags.

#include <cstdio>
#include <exception>
#include <new>

#include "../terminal_text.hpp"
#include "output.hpp"
#include "run.hpp"
#include "settings.hpp"

int main(int argc, char** argv) {
  try {
    auto const settings = hetero::parse(argc, argv);
    if (!settings) return 0;
    hetero::Files const files(*settings);
    auto const run =
        settings->model == "gpt" ? hetero::run_gpt(*settings) : hetero::run_vgg(*settings);
    std::fputs(hetero::table_of(*settings, run).c_str(), stdout);
    files.write(run);
    return 0;
  } catch (std::bad_alloc const&) {
    std::fputs("hetero: there is not enough memory; use fewer --steps or a smaller --batch\n",
               stderr);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "hetero: %s\n", cli::escaped(error.what()).c_str());
  }
  return 2;
}
