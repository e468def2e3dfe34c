// SPDX-License-Identifier: Apache-2.0
#include "overlapped_failures.hpp"

#include "catch.hpp"

#include <memory>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>

namespace sg = stagger;
using namespace overlapped_oracle;
namespace osp = sg::staleness::overlapped;
using sg::collective::OnFailure;
using sg::collective::ParameterServer;

namespace {

sg::optimizer::AdamW const adam{.rate = 0.05, .weight_decay = 0.1};
sg::optimizer::Sgd const sgd{.rate = 0.05, .momentum = 0.9, .weight_decay = 0.01};

template <class Selection, class Budget = osp::ShareLate>
using Osp = sg::staleness::OverlappedSynchronous<osp::ParameterGradientProduct, Selection, Budget>;

Rules all_late() {
  Rules rules = products(1);
  return rules;
}

/// @param check  (model, rules)
template <class Check> void sweep_budgets(Check check) {
  for (double const share : {0.3, 0.5, 0.8}) {
    CAPTURE(share);
    check(Osp<osp::FirstFit>{.budget = {share}}, products(share));
  }
  for (double const share : {0.1, 0.6, 0.8}) {
    CAPTURE(share);
    Rules rules = products(share);
    rules.misfit = Rules::splits;
    check(Osp<osp::SplitLayer>{.budget = {share}}, rules);
  }
  check(Osp<osp::FirstFit, osp::AllLate>{}, all_late());
}

}  // namespace

TEST_CASE(
    "train/OnFailure: a worker with late layers is killed at any point and comes back, and the "
    "bits "
    "are those of a sequential loop",
    "[train]") {
  int waited = 0;
  int all = 0;
  for (int const worker : {0, 1, 2})
    for (int const threads : {1, 2})
      for (int const shards : {1, 3}) {
        Failure failure{.worker = worker, .cuts = {}, .threads = threads};
        if (threads == 2) failure.cuts = {2};
        if (shards == 3) failure.shares = {0.5, 0.25, 0.25};
        auto const server = [&] {
          return std::make_unique<ParameterServer>(
              sg::collective::ServerOptions{.workers = 3,
                                            .shards = shards,
                                            .weights = failure.shares,
                                            .on_failure = OnFailure::go_on});
        };
        sweep_budgets([&](auto const& model, Rules const& rules) {
          int const killed = compare_failures(server, model, rules, adam, failure, 20, waited);
          CHECK(killed > 12);  // a push, a request and an answer of each layer
          failure.back += 3;
          all += killed;
        });
      }
  CHECK(waited > all / 10);
  CHECK(waited < all);
}
