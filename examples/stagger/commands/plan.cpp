// SPDX-License-Identifier: Apache-2.0
// stagger plan: assigns layers to devices, and predicts the time of an iteration.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/json/plan.hpp>
#include <stagger/partition/catalog.hpp>
#include <stagger/report/plan.hpp>

#include "../command.hpp"
#include "../papers.hpp"
#include "../planners.hpp"
#include "../profile.hpp"

namespace tool {

namespace {

namespace partition = stagger::partition;
namespace plan = stagger::plan;

/// Until it is destroyed, prints the elapsed time after 5 s, 10 s, 20 s, and so on.
class LongWorkNotice {
 public:
  explicit LongWorkNotice(std::string what)
      : thread_([what = std::move(what)](std::stop_token const& done) {
          std::mutex mutex;
          std::condition_variable_any wake;
          std::unique_lock lock(mutex);
          for (int passed_s = 0, next_s = 5;; passed_s = next_s, next_s *= 2) {
            wake.wait_for(lock, done, std::chrono::seconds(next_s - passed_s),
                          [] { return false; });
            if (done.stop_requested()) return;
            std::fprintf(stderr, "stagger: %s for %d s so far\n", what.c_str(), next_s);
          }
        }) {}

 private:
  std::jthread thread_;
};

constexpr std::string_view pipedream = partition::name_of<partition::PipeDream>;

struct Planner {
  std::string_view name;
  plan::Plan (*plan)(plan::Workload const& work);
};

constexpr Planner planners[]{
    {"dapple", [](auto const& work) { return made(plan::Dapple{}, work); }},
    {"dapple-printed",
     [](auto const& work) { return made(plan::Dapple{.form = plan::Form::printed}, work); }},
    {pipedream,
     [](auto const& work) { return made(ByPipeDream{.name = std::string(pipedream)}, work); }},
    {"straight", [](auto const& work) { return made(plan::Straight{}, work); }},
    {"data-parallel", [](auto const& work) { return made(plan::DataParallel{}, work); }},
    {"auto", [](auto const& work) { return made(plan::Auto{}, work); }}};

class PlanCommand final : public Command {
 public:
  void flags(Flags& app) override {
    own_flags_ = model_.flags(app);
    profile_batch_flag_ = model_.batch_flag(app);
    own_flags_.push_back(profile_batch_flag_);
    batch_flag_ = app.add("--batch", request_.batch, "Samples of an iteration", "GBS");
    microbatch_flag_ = app.add("--microbatch", request_.microbatch,
                               "Samples per device and microbatch; default: the profile's "
                               "batch, which auto may change",
                               "B");
    own_flags_.insert(
        own_flags_.end(),
        {batch_flag_, microbatch_flag_,
         app.add("--policy", policy_, alternatives(policies()) + "; default dapple", "WORD"),
         app.add("--memory-factor", memory_,
                 "Bytes of state for each byte of parameters: adam (4) | sgd (2) | NUMBER", "WORD"),
         app.add("--recompute", request_.recompute,
                 "Keep the inputs of stages alone and run forwards again; auto tries both")});
    app.add("--paper", paper_, "dapple | hetpipe: the published tables beside ours", "NAME");
    app.add("--profiles", profiles_,
            "Folder with measured profiles for --paper; default: STAGGER_PROFILES", "DIR");
    add_formats(app, {"text", "json", "svg"});
    app.footer(
        "Example: stagger plan --profile examples/stagger/model.json --cluster dapple-a:2x8 "
        "--batch 64\n"
        "prints the stages, their devices, and the predicted time and memory of each.");
  }

  Answer run() override {
    std::string const& form = format();
    if (!paper_.empty()) {
      require_word("--paper", paper_, {"dapple", "hetpipe"});
      leave_out(own_flags_, "--paper brings its own models and clusters");
      if (form == "svg") refuse("--paper has no picture; use --format text or json");
      bool const json = form == "json";
      if (paper_ == "dapple") return {paper_dapple(profiles_folder(profiles_), json)};
      if (!profiles_.empty())
        refuse("--paper hetpipe has no measured profiles; leave --profiles out");
      return {paper_hetpipe(json)};
    }
    if (!profiles_.empty())
      refuse("--profiles is for --paper; a profile of your own is --profile FILE");
    require_word("--policy", policy_, policies());
    model_.require("plan", ", or --paper dapple", "a preset such as dapple-a:2x8");
    if (!batch_flag_.given()) refuse("plan needs --batch GBS, the samples of an iteration");
    require_count(batch_flag_, request_.batch);
    require_count(microbatch_flag_, request_.microbatch);
    request_.memory_factor = memory_factor();
    plan::Workload const work(model_.profile(), model_.cluster(), request_);
    try {
      auto const start = std::chrono::steady_clock::now();
      plan::Plan found = [&] {
        LongWorkNotice const notice("planning");
        return std::find_if(std::begin(planners), std::end(planners),
                            [&](Planner const& each) { return each.name == policy_; })
            ->plan(work);
      }();
      found.solve_s =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (form == "json") return {stagger::json::write_plan(found)};
      if (form == "svg") return {stagger::report::picture_svg(found, work.cluster())};
      std::string const samples = stagger::counted(work.profile().batch, "sample");
      return {stagger::report::table(found) +
              (profile_batch_flag_.given()
                   ? "profile    of " + samples + ", as --profile-batch says\n"
                   : "") +
              "\n" + stagger::report::picture(found, work.cluster())};
    } catch (plan::Infeasible const& no) {
      return {"", no.what(), 1};
    }
  }

 private:
  [[nodiscard]] static std::vector<std::string> policies() {
    std::vector<std::string> names;
    for (Planner const& each : planners) names.emplace_back(each.name);
    return names;
  }

  [[nodiscard]] double memory_factor() const {
    if (memory_ == "adam") return plan::memory_factor::adam;
    if (memory_ == "sgd") return plan::memory_factor::sgd;
    char* end = nullptr;
    double const value = std::strtod(memory_.c_str(), &end);
    bool const number = !memory_.empty() && *end == 0 && value >= 0 && value <= 1e300;
    if (!number)
      refuse("--memory-factor " + memory_ +
             " cannot be used; give adam, sgd, or a finite number that is not negative");
    return value;
  }

  ModelAndCluster model_{};
  std::string policy_ = "dapple", memory_ = "adam", paper_{}, profiles_{};
  plan::Request request_{};
  Flag profile_batch_flag_{}, batch_flag_{}, microbatch_flag_{};
  std::vector<Flag> own_flags_{};  ///< of a plan that is no paper's
};

Registered<PlanCommand> const plan_registered{6, "plan", "Choose stages, replicas and devices"};

}  // namespace

}  // namespace tool
