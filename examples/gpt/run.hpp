// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A training run, from its settings to its report, on any device.

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include <stagger/core/error.hpp>
#include <stagger/core/file.hpp>
#include <stagger/json/plan.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/plan.hpp>
#include <stagger/report/progress.hpp>
#include <stagger/train/checkpoint.hpp>

#include "folder_lock.hpp"
#include "forecast.hpp"
#include "record.hpp"
#include "run_config.hpp"
#include "sample.hpp"
#include "train.hpp"

namespace gpt {

inline std::sig_atomic_t volatile interrupted = 0;

/// The first signal ends the run after the current step; a second one ends the program at once.
inline void listen_for_interrupts() {
  struct ::sigaction action{};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (int const signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
}

/// @tparam Platform  what depends on the device that ranks run on; constructed from the settings:
///
/// @code
///     struct Platform {
///       using Trainer, Comparison;                   // returned by `make`; for --compare
///       void require_memory(Settings const&) const;  // throws if there is too little
///       Trainer make(RunConfig const&);
///       bool is_first_process() const;
///       bool none_interrupted() const;               // in any process
///       bool any_process(bool here) const;           // logical or over all processes
///       std::string describe_devices(RunConfig const&) const;    // "2 threads"
///       Forecast forecast(Settings const&, Text const&);         // for --plan
///       std::string compared(Forecast const&, Record const&, Trainer&);
///       std::int64_t recorded_steps(Settings const&) const;      // last steps with timelines
///       Metrics step(Trainer&, Batch const&, bool recorded);
///       double held_out_loss(Trainer&, Batch const&);
///       float const* logits(Trainer&, Tokens const&);            // [sequences][length][256]
///       void report(Settings const&) const;                      // prints further measurements
///     };
/// @endcode
template <class Platform> class Run {
 public:
  Run(Settings const& s, char const* sources)
      : config_{s},
        platform_(s),
        text_(Text::read(s.text.empty() ? own_files(sources) : s.text),
              static_cast<std::size_t>(s.context)) {
    if (s_.plan.empty()) platform_.require_memory(s_);
    if (s_.writes()) prepare_output(s_.output);
    if (!s_.checkpoint.empty()) {
      checkpoints_.emplace(s_.checkpoint);
      if (platform_.is_first_process()) lock_.emplace(s_.checkpoint);
      if (platform_.any_process(lock_ && !lock_->taken()))
        throw sg::Error(sg::Errc::bad_configuration,
                        "another run keeps its checkpoints in the folder '" + s_.checkpoint +
                            "'; wait until it has ended, or name another folder");
    }
    if (checkpoints_ && !s_.resume && !checkpoints_->steps().empty())
      throw sg::Error(sg::Errc::bad_configuration,
                      "the folder '" + s_.checkpoint + "' holds a checkpoint of step " +
                          std::to_string(checkpoints_->steps().front()) +
                          "; add --resume to go on from it, or name another folder");
    if (!s_.plan.empty()) plan();
    batch_.inputs.resize(static_cast<std::size_t>(s_.microbatches));
    held_out_.inputs.resize(static_cast<std::size_t>(s_.microbatches));
    text_.held_out(std::max<std::size_t>(held_out_sequences, held_out_.inputs.size()), held_out_);
    train_.emplace(platform_.make(config_));
    if (s_.compare) comparison_.emplace(config_);
  }

  Outcome operator()() {
    if (s_.resume) resume();
    if (comparison_) comparison_->start(*train_);
    introduce();
    std::int64_t const first = train_->steps();
    std::int64_t const last = s_.stop_at > 0 ? std::min(s_.stop_at, s_.steps) : s_.steps;
    double const begin_s = now_s();
    std::FILE* const terminal = platform_.is_first_process() ? stderr : stdout;
    sg::report::Progress progress(terminal, sg::report::progress_options(terminal), s_.steps, first,
                                  begin_s);
    double tokens = 0;
    for (std::int64_t step = first; step < last && platform_.none_interrupted(); ++step) {
      if (comparison_) comparison_->begin_step(*train_);
      auto const metrics = take_step(step);
      tokens += static_cast<double>(s_.batch * s_.context);
      progress.update(step + 1, metrics.loss, tokens, now_s());
      if (!agrees(metrics, progress)) return Outcome::differs;
      if ((step + 1) % s_.checkpoint_every == 0) save();
    }
    progress.finish();
    if (train_->steps() < s_.steps) {
      save();
      std::printf("stopped after step %lld of %lld%s\n", static_cast<long long>(train_->steps()),
                  static_cast<long long>(s_.steps),
                  checkpoints_ ? "; --resume goes on from there" : ", without a checkpoint");
      return interrupted != 0 ? Outcome::interrupted : Outcome::finished;
    }
    save();
    report();
    return Outcome::finished;
  }

 private:
  static constexpr std::size_t held_out_sequences = 128;

  void plan() {
    std::fprintf(stderr, "measuring the layers on %s\n",
                 platform_.describe_devices(config_).c_str());
    forecast_ = platform_.forecast(s_, text_);
    auto const& made = forecast_->plan;
    config_.planned = sg::planned(made);
    s_.stages = static_cast<std::int64_t>(made.stages.size());
    s_.microbatches = made.microbatches;
    s_.recompute = made.recompute;
    platform_.require_memory(s_);
    std::printf("%s\n", sg::report::table(made).c_str());
  }

  void introduce() {
    if (!platform_.is_first_process()) return;
    std::size_t parameters = 0;
    for (auto const& shape : train_->parameter_shapes()) parameters += shape.bytes / sizeof(float);
    std::fprintf(stderr, "%s parameters in %s, %s on %s, %s, %s of text\n",
                 sg::report::format_count(static_cast<double>(parameters)).c_str(),
                 sg::counted(s_.chain(), "layer").c_str(), sg::counted(s_.stages, "stage").c_str(),
                 platform_.describe_devices(config_).c_str(),
                 (s_.schedule + describe_replicas(config_)).c_str(),
                 sg::report::format_bytes(static_cast<double>(text_.size())).c_str());
  }

  sg::Metrics take_step(std::int64_t step) {
    text_.draw(static_cast<std::uint64_t>(s_.seed), step, static_cast<std::size_t>(s_.batch),
               batch_);
    train_->optimizer().rate = s_.rate_at(step);
    bool const recorded = step + platform_.recorded_steps(s_) >= s_.steps;
    train_->record(recorded);
    double const begin_s = now_s();
    auto const metrics = platform_.step(*train_, batch_, recorded);
    double const wall_s = now_s() - begin_s;
    if (!std::isfinite(metrics.loss))
      throw sg::Error(sg::Errc::bad_configuration,
                      "the loss of step " + std::to_string(step + 1) +
                          " is not finite; use a smaller --rate, or a longer --warm-up");
    if (recorded) record_.add(one_of_each(train_->timeline()), wall_s, train_->peak_in_flight());
    return metrics;
  }

  /// The rows of the first replica of each stage.
  [[nodiscard]] sg::schedule::Timeline one_of_each(sg::schedule::Timeline const& timeline) const {
    auto const replicas = replicas_of(config_);
    if (replicas.empty()) return timeline;
    sg::schedule::Timeline first;
    auto const& parts = replicas.parts();
    for (std::size_t r = 0; r < parts.size(); ++r)
      if (parts[r].replica == 0) first.add_row(timeline.row(r));
    return first;
  }

  /// With --compare, takes the same step on one device and compares.
  [[nodiscard]] bool agrees(sg::Metrics const& metrics, sg::report::Progress& progress) {
    if (!comparison_) return true;
    train_->gather_parameters();
    std::string const difference = comparison_->difference(*train_, batch_, metrics);
    if (difference.empty()) return true;
    progress.finish();
    std::fprintf(stderr, "gpt: %s\n", difference.c_str());
    return false;
  }

  void save() {
    if (!checkpoints_ || saved_ == train_->steps()) return;
    saved_ = train_->steps();
    checkpoints_->write({saved_, static_cast<std::uint64_t>(s_.seed), describe_model(s_),
                         describe_training(config_, text_)},
                        *train_);
  }

  void resume() {
    train_->prepare(batch_.inputs.size());
    auto const restored = checkpoints_->restore(describe_model(s_), *train_);
    for (auto const& warning : restored.warnings)
      std::fprintf(stderr, "gpt: warning: %s\n", warning.c_str());
    if (platform_.is_first_process() &&
        restored.state.settings != describe_training(config_, text_))
      std::fprintf(stderr,
                   "gpt: warning: %s was written with other settings (%s): the result will not be "
                   "that of a run that never stopped\n",
                   restored.file.c_str(),
                   differences(restored.state.settings, describe_training(config_, text_)).c_str());
    saved_ = restored.state.step;
    if (platform_.is_first_process())
      std::fprintf(stderr, "going on from %s\n", restored.file.c_str());
  }

  void report() {
    auto const plan = table_of(config_);
    if (!record_.empty() && forecast_)
      std::printf("%s\n", platform_.compared(*forecast_, record_, *train_).c_str());
    if (!record_.empty()) {
      std::printf("%s\n", record_.table(plan).c_str());
      if (s_.writes()) {
        record_.write(s_.output, plan, s_.steps);
        if (forecast_)
          sg::write_file(s_.output + "/plan.json", sg::json::write_plan(forecast_->plan));
        std::printf("%s/trace.json opens in ui.perfetto.dev, %s/timeline.svg in a browser\n",
                    s_.output.c_str(), s_.output.c_str());
      }
    }
    if (comparison_) comparison_->report();
    platform_.report(s_);
    std::printf("held-out loss %.4f nats per byte\n", platform_.held_out_loss(*train_, held_out_));
    if (s_.sample > 0) {
      auto const text = sample(
          [&](Tokens const& window) { return platform_.logits(*train_, window); }, most_replicas(),
          s_.prompt.value_or(text_.prompt()), static_cast<std::size_t>(s_.sample),
          static_cast<std::size_t>(s_.context), static_cast<std::uint64_t>(s_.seed));
      std::printf("\n%s\n", text.c_str());
    }
  }

  /// The smallest number of rows of a prediction: each replica needs one.
  [[nodiscard]] std::size_t most_replicas() const {
    int most = 1;
    auto const replicas = replicas_of(config_);
    for (int const count : replicas.counts()) most = std::max(most, count);
    return static_cast<std::size_t>(most);
  }

  RunConfig config_;
  Settings& s_ = config_.s;
  Platform platform_;
  std::optional<Forecast> forecast_;
  Text text_;
  std::optional<sg::Checkpoints> checkpoints_;
  std::optional<FolderLock> lock_;
  std::optional<typename Platform::Trainer> train_;
  std::optional<typename Platform::Comparison> comparison_;
  Batch batch_;
  Batch held_out_;
  Record record_;
  std::int64_t saved_ = -1;  // step of the newest checkpoint
};

}  // namespace gpt
