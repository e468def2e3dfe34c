// SPDX-License-Identifier: Apache-2.0
// Compiled twice where there is an MPI: for ranks on threads, and with GPT_OVER_MPI for ranks in
// processes.
#include "train.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <stagger/collective/grouped.hpp>
#include <stagger/core/file.hpp>
#include <stagger/engine/checkpoint.hpp>
#include <stagger/engine/planned.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/json/plan.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/plan.hpp>
#include <stagger/report/progress.hpp>
#include <stagger/stagger.hpp>
#ifdef GPT_OVER_MPI
#include <stagger/mpi/processes.hpp>
#include <stagger/mpi/session.hpp>
#endif

#include "by_work.hpp"
#include "forecast.hpp"
#include "model/model.hpp"
#include "record.hpp"
#include "sample.hpp"
#include "schedules.hpp"
#include "text.hpp"

namespace gpt {

namespace sg = stagger;

namespace {

volatile std::sig_atomic_t interrupted = 0;

/// The first signal ends the run after the step; a second one ends the program at once.
void listen_for_interrupts() {
  struct ::sigaction action {};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (int const signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
}

#ifdef GPT_OVER_MPI
sg::mpi::Processes device_of(Settings const&) { return {}; }

bool leads() {
  int process = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &process);
  return process == 0;
}

/// Processes are interrupted at different moments, and stop after the same step.
bool all_go_on() {
  int mine = interrupted != 0 ? 1 : 0;
  int any = 0;
  MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (any != 0) interrupted = 1;
  return any == 0;
}
#else
sg::host::Threads device_of(Settings const& s) { return {static_cast<int>(s.threads)}; }

bool leads() { return true; }
bool all_go_on() { return interrupted == 0; }
#endif

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ModelShape shape_of(Settings const& s) { return {s.layers, s.width, s.heads, s.context}; }

std::string model_in_words(Settings const& s) {
  return "gpt, layers " + std::to_string(s.layers) + ", width " + std::to_string(s.width) +
         ", heads " + std::to_string(s.heads) + ", context " + std::to_string(s.context);
}

/// What is asked for, and the plan that was made for it.
struct Way {
  Settings s;
  std::optional<sg::Planned> planned{};
};

Schedule schedule_of(Way const& way) {
  Settings const& s = way.s;
  return way.planned ? Schedule::planned(way.planned->schedule.warm_up, s.microbatches)
                     : Schedule::named(s.schedule, s.chunks, s.microbatches);
}

/// The schedule's table for a step.
sg::schedule::Table table_of(Way const& way) {
  return schedule_of(way).table({.ranks = static_cast<int>(way.s.ranks()),
                                 .microbatches = static_cast<int>(way.s.microbatches),
                                 .chunks = static_cast<int>(way.s.chunks)});
}

/// Ranks of each row of the table.
sg::Replicas replicas_of(Way const& way) {
  if (way.planned) return way.planned->options.replicas;
  if (way.s.replicas == 1) return {};
  std::vector<int> const counts(static_cast<std::size_t>(way.s.ranks()),
                                static_cast<int>(way.s.replicas));
  return sg::Replicas::even(counts.data(), counts.size());
}

std::string replicas_in_words(Way const& way) {
  std::string words;
  auto const replicas = replicas_of(way);
  for (int const count : replicas.counts())
    words += (words.empty() ? ", replicas " : ":") + std::to_string(count);
  return words;
}

/// Everything else that the bits of the result depend on.
std::string training_in_words(Way const& way, Text const& text) {
  Settings const& s = way.s;
  char words[256];
  std::snprintf(words, sizeof words,
                "steps %lld, batch %lld, microbatches %lld, rate %.17g, warm-up %lld, clip %.17g, "
                "seed %lld, text %016llx",
                static_cast<long long>(s.steps), static_cast<long long>(s.batch),
                static_cast<long long>(s.microbatches), s.rate, static_cast<long long>(s.warmup),
                s.clip, static_cast<long long>(s.seed),
                static_cast<unsigned long long>(text.fingerprint()));
  return std::string(words) + (adds(table_of(way)) == Adds::falling ? ", sums falling" : "") +
         replicas_in_words(way);
}

/// Creates the folder and tries to write there, before hours of work depend on it.
void prepare_output(std::string const& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw sg::Error(sg::Errc::io,
                    "cannot create the folder '" + folder + "': " + error.message() +
                        "; give --output DIR a place that can be written to, or none");
  sg::WholeFile probe(folder + "/trace.json");  // not committed: nothing stays
}

/// An honest word now instead of a machine that swaps, or kills, later.
void require_memory(Settings const& s) {
  double const rows =
      std::ceil(static_cast<double>(s.batch) / static_cast<double>(s.microbatches)) *
      static_cast<double>(s.context);
  double const needed = least_bytes(shape_of(s), rows);
  double const there = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  if (needed > there)
    throw sg::Error(sg::Errc::bad_configuration,
                    "--layers " + std::to_string(s.layers) + " of --width " +
                        std::to_string(s.width) + " need at least " +
                        sg::report::format_bytes(needed) + " of memory, and this machine has " +
                        sg::report::format_bytes(there) +
                        "; use a smaller --width, --layers or --context, or more --microbatches");
}

auto make_model(Settings const& s) {
  return sg::Pipeline{make_model<float>(shape_of(s), static_cast<std::uint64_t>(s.seed))};
}

constexpr sg::optimizer::AdamW adam{.beta2 = 0.98, .weight_decay = 0.05};

sg::Options options_of(Settings const& s) {
  return {.clip_norm = s.clip,
          .seed = static_cast<std::uint64_t>(s.seed),
          .deadline_s = 600,
          .recompute = s.recompute,
          .record = true};
}

auto make_pipeline(Way const& way) {
  Settings const& s = way.s;
  sg::Options options = options_of(s);
  options.replicas = replicas_of(way);
  sg::partition::Cuts cuts;
  if (way.planned)
    cuts = way.planned->cuts;
  else
    cuts.first_layers =
        ByWork{work_of(shape_of(s)), static_cast<int>(s.stages)}.cuts(static_cast<int>(s.chain()));
  return make_model(s).with(cuts, schedule_of(way), adam, CrossEntropy<float>{}, device_of(s),
                            sg::collective::Grouped<>{.shard_optimizer = s.shard_optimizer},
                            options);
}

auto make_one_device(Settings const& s) {
  return make_model(s).on_one_device(adam, CrossEntropy<float>{}, options_of(s));
}

using Trainer = decltype(make_pipeline(std::declval<Way const&>()));

/// The same training on one device, step by step beside the pipeline.
class Comparison {
 public:
  explicit Comparison(Way const& way)
      : one_(make_one_device(way.s)), falling_(adds(table_of(way)) == Adds::falling) {}

  /// Goes on from where the pipeline stands.
  void start(Trainer& train) {
    auto const from = train.parameters();
    auto const to = one_.parameters();
    for (std::size_t i = 0; i < from.size(); ++i) {
      copy(from[i].value, to[i].value);
      for (std::size_t k = 0; k < 2; ++k) copy(from[i].state[k], to[i].state[k]);
    }
    one_.resume(train.steps());
  }

  void step(Batch const& batch, double rate) {
    one_.optimizer().rate = rate;
    double const begin_s = now_s();
    if (falling_) {  // the same sums in the same order
      Batch turned{{batch.inputs.rbegin(), batch.inputs.rend()},
                   {batch.targets.rbegin(), batch.targets.rend()}};
      (void)one_.step(turned);
    } else {
      (void)one_.step(batch);
    }
    wall_s_.push_back(now_s() - begin_s);
  }

  /// @return  a sentence about the first parameter that differs; empty: none does
  [[nodiscard]] std::string difference(Trainer& train) {
    auto const there = train.parameters();
    auto const here = one_.parameters();
    for (std::size_t i = 0; i < here.size(); ++i) {
      std::string const where =
          "after step " + std::to_string(train.steps()) + " the pipeline and one device differ in ";
      auto const a = there[i].values<float>();
      auto const b = here[i].values<float>();
      for (std::size_t e = 0; e < a.size(); ++e)
        if (std::memcmp(&a[e], &b[e], sizeof(float)) != 0) {
          char numbers[96];
          std::snprintf(numbers, sizeof numbers, "[%zu]: %.9g and %.9g", e,
                        static_cast<double>(a[e]), static_cast<double>(b[e]));
          return where + "parameter " + here[i].name + numbers;
        }
      for (std::size_t k = 0; k < 2; ++k)
        if (!std::equal(there[i].state[k].begin(), there[i].state[k].end(),
                        here[i].state[k].begin()))
          return where + "the optimizer's state of parameter " + here[i].name;
    }
    return "";
  }

  /// Middle one of the steps' times, seconds; 0 before the first.
  [[nodiscard]] double step_s() const {
    auto sorted = wall_s_;
    std::sort(sorted.begin(), sorted.end());
    return sorted.empty() ? 0 : sorted[sorted.size() / 2];
  }

 private:
  static void copy(std::span<std::byte const> from, std::span<std::byte> to) {
    std::copy(from.begin(), from.end(), to.begin());
  }

  decltype(make_one_device(std::declval<Settings const&>())) one_;
  bool falling_;
  std::vector<double> wall_s_;
};

class Run {
 public:
  Run(Settings const& s, char const* sources)
      : way_{s},
        text_(Text::read(s.text.empty() ? own_files(sources) : s.text),
              static_cast<std::size_t>(s.context)) {
    if (s_.plan.empty()) require_memory(s_);
    if (s_.writes()) prepare_output(s_.output);
    if (!s_.checkpoint.empty()) checkpoints_.emplace(s_.checkpoint);
    if (checkpoints_ && !s_.resume && !checkpoints_->steps().empty())
      throw sg::Error(sg::Errc::bad_configuration,
                      "the folder '" + s_.checkpoint + "' holds a checkpoint of step " +
                          std::to_string(checkpoints_->steps().front()) +
                          "; add --resume to go on from it, or name another folder");
    if (!s_.plan.empty()) plan();
    batch_.inputs.resize(static_cast<std::size_t>(s_.microbatches));
    held_out_.inputs.resize(static_cast<std::size_t>(s_.microbatches));
    text_.held_out(std::max<std::size_t>(held_out_sequences, held_out_.inputs.size()), held_out_);
    train_.emplace(make_pipeline(way_));
    if (s_.compare) comparison_.emplace(way_);
  }

  Outcome operator()() {
    if (s_.resume) resume();
    if (comparison_) comparison_->start(*train_);
    introduce();
    std::int64_t const first = train_->steps();
    std::int64_t const last = s_.stop_at > 0 ? std::min(s_.stop_at, s_.steps) : s_.steps;
    double const begin_s = now_s();
    std::FILE* const shown = leads() ? stderr : stdout;
    sg::report::Progress progress(shown, sg::report::progress_options(shown), s_.steps, first,
                                  begin_s);
    double tokens = 0;
    for (std::int64_t step = first; step < last && all_go_on(); ++step) {
      double const loss = take_step(step);
      tokens += static_cast<double>(s_.batch * s_.context);
      progress.update(step + 1, loss, tokens, now_s());
      if (!agrees(progress)) return Outcome::differs;
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
    std::fprintf(stderr, "measuring the layers on %lld threads\n",
                 static_cast<long long>(s_.threads));
    forecast_ = forecast(s_, text_);
    auto const& made = forecast_->plan;
    way_.planned = sg::planned(made);
    s_.stages = static_cast<std::int64_t>(made.stages.size());
    s_.microbatches = made.microbatches;
    s_.recompute = made.recompute;
    require_memory(s_);
    std::printf("%s\n", sg::report::table(made).c_str());
  }

  void introduce() {
    if (!leads()) return;
    std::size_t parameters = 0;
    for (auto const& parameter : train_->parameters())
      parameters += parameter.value.size() / sizeof(float);
    std::fprintf(stderr, "%s parameters in %lld layers, %lld stages on %d %s, %s, %s of text\n",
                 sg::report::format_count(static_cast<double>(parameters)).c_str(),
                 static_cast<long long>(s_.chain()), static_cast<long long>(s_.stages),
                 device_of(s_).places(), s_.over_mpi() ? "processes" : "threads",
                 (s_.schedule + replicas_in_words(way_)).c_str(),
                 sg::report::format_bytes(static_cast<double>(text_.size())).c_str());
  }

  double take_step(std::int64_t step) {
    text_.draw(static_cast<std::uint64_t>(s_.seed), step, static_cast<std::size_t>(s_.batch),
               batch_);
    train_->optimizer().rate = s_.rate_at(step);
    double const begin_s = now_s();
    double const loss = sg::run(train_->step(batch_)).loss;
    double const wall_s = now_s() - begin_s;
    if (!std::isfinite(loss))
      throw sg::Error(sg::Errc::bad_configuration,
                      "the loss of step " + std::to_string(step + 1) +
                          " is not finite; use a smaller --rate, or a longer --warm-up");
    if (step + static_cast<std::int64_t>(Record::kept) >= s_.steps)
      record_.add(one_of_each(train_->timeline()), wall_s, train_->peak_in_flight());
    return loss;
  }

  /// Of the replicas of a stage, the first stands for all.
  [[nodiscard]] sg::schedule::Timeline one_of_each(sg::schedule::Timeline timeline) const {
    auto const replicas = replicas_of(way_);
    if (replicas.empty()) return timeline;
    sg::schedule::Timeline first;
    auto const& parts = replicas.parts();
    for (std::size_t r = 0; r < parts.size(); ++r)
      if (parts[r].replica == 0) first.rows.push_back(std::move(timeline.rows[r]));
    return first;
  }

  /// Takes the same step on one device, if that was asked for.
  [[nodiscard]] bool agrees(sg::report::Progress& progress) {
    if (!comparison_) return true;
    comparison_->step(batch_, train_->optimizer().rate);
    train_->gather_parameters();
    std::string const difference = comparison_->difference(*train_);
    if (difference.empty()) return true;
    progress.finish();
    std::fprintf(stderr, "gpt: %s\n", difference.c_str());
    return false;
  }

  void save() {
    if (!checkpoints_ || saved_ == train_->steps()) return;
    saved_ = train_->steps();
    train_->gather_parameters();
    if (!leads()) return;
    auto const parameters = train_->parameters();
    checkpoints_->write({saved_, static_cast<std::uint64_t>(s_.seed), model_in_words(s_),
                         training_in_words(way_, text_)},
                        parameters);
  }

  void resume() {
    auto const parameters = train_->parameters();
    auto const restored = checkpoints_->restore(model_in_words(s_), parameters);
    for (auto const& warning : restored.warnings)
      std::fprintf(stderr, "gpt: warning: %s\n", warning.c_str());
    if (leads() && restored.state.settings != training_in_words(way_, text_))
      std::fprintf(stderr,
                   "gpt: warning: %s was written with other settings (%s; now %s): the result will "
                   "not be that of a run "
                   "that never stopped\n",
                   restored.file.c_str(), restored.state.settings.c_str(),
                   training_in_words(way_, text_).c_str());
    train_->resume(restored.state.step);
    saved_ = restored.state.step;
    if (leads()) std::fprintf(stderr, "going on from %s\n", restored.file.c_str());
  }

  void report() {
    auto const plan = table_of(way_);
    if (!record_.empty() && forecast_)
      std::printf(
          "%s\n",
          compared(*forecast_, record_.step_s(), record_.fastest_s(), train_->memory()).c_str());
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
    if (comparison_ && comparison_->step_s() > 0)
      std::printf("bit-equal to one device after every step; one device takes %s for a step\n",
                  sg::report::format_seconds(comparison_->step_s()).c_str());
    std::printf("held-out loss %.4f nats per byte\n", sg::run(train_->evaluate(held_out_)).loss);
    if (s_.sample > 0) {
      auto const text =
          sample(*train_, most_replicas(), s_.prompt, static_cast<std::size_t>(s_.sample),
                 static_cast<std::size_t>(s_.context), static_cast<std::uint64_t>(s_.seed));
      std::printf("\n%s\n", text.c_str());
    }
  }

  /// Rows that a prediction has at least.
  [[nodiscard]] std::size_t most_replicas() const {
    int most = 1;
    auto const replicas = replicas_of(way_);
    for (int const count : replicas.counts()) most = std::max(most, count);
    return static_cast<std::size_t>(most);
  }

  Way way_;
  Settings& s_ = way_.s;
  std::optional<Forecast> forecast_;
  Text text_;
  std::optional<sg::Checkpoints> checkpoints_;
  std::optional<Trainer> train_;
  std::optional<Comparison> comparison_;
  Batch batch_;
  Batch held_out_;
  Record record_;
  std::int64_t saved_ = -1;  // step of the newest checkpoint
};

}  // namespace

#ifdef GPT_OVER_MPI
Outcome train_over_mpi(Settings const& settings, char const* sources) {
  sg::mpi::Session const session;
  listen_for_interrupts();
  Settings s = settings;
  if (!leads()) {
    s.output = "none";
    if (std::freopen("/dev/null", "w", stdout) == nullptr)
      throw sg::Error(sg::Errc::io, "cannot write to /dev/null");
  }
  return Run(s, sources)();
}
#else
Outcome train(Settings const& settings, char const* sources) {
  listen_for_interrupts();
  return Run(settings, sources)();
}
#endif

}  // namespace gpt
