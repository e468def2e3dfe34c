// SPDX-License-Identifier: Apache-2.0
// Workers that train one model through a parameter server. `hetero --help` explains the flags.

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stagger/core/error.hpp>

#include "output.hpp"
#include "papers.hpp"
#include "run.hpp"
#include "settings.hpp"
#include "staleness_models.hpp"
#include "team.hpp"

namespace {

/// All staleness models on one workload.
int compare(hetero::Settings const& settings, hetero::Files const& files) {
  std::vector<hetero::Settings> all;
  std::vector<std::string> names;
  for (std::string_view const name : hetero::names_of_models()) {
    all.push_back(settings);
    all.back().sync = names.emplace_back(name);
  }
  auto outcomes = hetero::run_all(all, names);
  std::vector<hetero::Compared> trained;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (outcomes[i].why.empty()) trained.push_back({names[i], all[i], std::move(outcomes[i].run)});
  if (trained.empty()) stagger::raise(stagger::Errc::bad_configuration, outcomes.front().why);
  std::fputs(hetero::comparison_of(trained).c_str(), stdout);
  files.write(trained);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    auto settings = hetero::parse(argc, argv);
    if (!settings) return 0;
    hetero::Files{*settings};  // before processes are started
    if (auto const code = hetero::start_processes(*settings, argc, argv)) return *code;
    hetero::Files const files(*settings);
    if (!settings->paper.empty()) {
      if (settings->paper == "osp") {
        std::fputs(hetero::claims_of_osp(*settings).c_str(), stdout);
        return 0;
      }
      auto const runs = hetero::run_hetpipe(*settings);
      std::fputs(hetero::claims_of_hetpipe(runs).c_str(), stdout);
      files.write(hetero::first_seed(runs));
      return 0;
    }
    if (settings->compare) return compare(*settings, files);
    auto const run = hetero::run(*settings);
    std::fputs(hetero::table_of(*settings, run).c_str(), stdout);
    files.write(run);
    return 0;
  } catch (std::bad_alloc const&) {
    std::fputs("hetero: there is not enough memory; use fewer --steps or a smaller --batch\n",
               stderr);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "hetero: %s\n", stagger::printable(error.what()).c_str());
  }
  return 2;
}
