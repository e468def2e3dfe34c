// SPDX-License-Identifier: Apache-2.0
#include "train.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/engine/groups.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/stagger.hpp>
#ifdef GPT_HAS_MPI
#include <stagger/mpi/processes.hpp>
#include <stagger/mpi/session.hpp>
#endif

#include "layers/by_work.hpp"
#include "run.hpp"

namespace gpt {

namespace {

constexpr double deadline_s = 600;

/// The processes of an MPI job. MPI is initialised while an object of this class lives.
class Processes {
 public:
#ifdef GPT_HAS_MPI
  static auto device() { return sg::mpi::Processes{}; }

  [[nodiscard]] static bool first() {
    int process = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &process);
    return process == 0;
  }
  [[nodiscard]] static bool any_process(bool here) {
    static int mine = 0;  // static, since MPI may still access both after an error
    static int any = 0;
    mine = here ? 1 : 0;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(&mine, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD, &request);
    auto const start = std::chrono::steady_clock::now();
    for (int done = 0;;) {
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (done != 0) return any != 0;
      std::chrono::duration<double> const waited = std::chrono::steady_clock::now() - start;
      if (waited.count() > deadline_s)
        sg::raise(sg::Errc::deadline, "not all processes have ended their step after ", deadline_s,
                  " s; look for one that died or hangs");
      if (waited.count() < 1e-3)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  Processes() {
    MPI_Comm_dup(MPI_COMM_WORLD, &error_comm_);
    MPI_Comm_set_errhandler(error_comm_, MPI_ERRORS_RETURN);
  }

  /// Whether a lower-ranked process has ended with the same message, and so prints it. Waits for
  /// at most five seconds, since processes without an error do not call this.
  [[nodiscard]] bool reported_elsewhere(std::string_view message) const {
    int process = 0;
    int count = 0;
    MPI_Comm_rank(error_comm_, &process);
    MPI_Comm_size(error_comm_, &count);
    static std::uint64_t mine = 0;  // static, since a pending message may outlive this call
    static std::vector<std::uint64_t> all;
    mine = 0xcbf29ce484222325U;  // FNV-1a
    for (char const c : message) mine = (mine ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    all.assign(static_cast<std::size_t>(count), 0);
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Iallgather(&mine, 1, MPI_UINT64_T, all.data(), 1, MPI_UINT64_T, error_comm_,
                       &request) != MPI_SUCCESS)
      return false;
    double const begin_s = now_s();
    for (int done = 0; done == 0;) {
      if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
      if (now_s() - begin_s > 5) return false;
    }
    return std::find(all.begin(), all.begin() + process, mine) != all.begin() + process;
  }

 private:
  sg::mpi::Session session_;
  MPI_Comm error_comm_ = MPI_COMM_NULL;
#else
  Processes() {
    throw sg::Error(sg::Errc::bad_configuration,
                    "--device mpi needs an MPI, without which this program was built");
  }
  static auto device() { return sg::host::Threads{1}; }
  static bool first() { return true; }
  static bool any_process(bool here) { return here; }
  static bool reported_elsewhere(std::string_view) { return false; }
#endif
};

auto make_model(Settings const& s) {
  return sg::Pipeline{make_model<float>(shape_of(s), static_cast<std::uint64_t>(s.seed))};
}

constexpr sg::optimizer::AdamW adam{.beta2 = 0.98, .weight_decay = 0.05};

sg::Options options_of(Settings const& s) {
  return {.clip_norm = s.clip,
          .seed = static_cast<std::uint64_t>(s.seed),
          .deadline_s = deadline_s,
          .recompute = s.recompute,
          .record = true};
}

template <class Device> auto make_pipeline(RunConfig const& config, Device device) {
  Settings const& s = config.s;
  sg::Options options = options_of(s);
  options.replicas = replicas_of(config);
  sg::partition::LayerSplit<> split{.group = static_cast<int>(s.tensor_parallel), .threshold = 0};
  if (config.planned)
    split.over = config.planned->cuts;
  else
    split.over.first_layers =
        ByWork{work_of(shape_of(s)), static_cast<int>(s.stages)}.cuts(static_cast<int>(s.chain()));
  return make_model(s).with(split, schedule_of(config), adam, CrossEntropy<float>{}, device,
                            sg::collective::AllReduce<>{.shard_optimizer = s.shard_optimizer},
                            options);
}

sg::host::Threads threads_of(Settings const& s) { return {static_cast<int>(s.threads)}; }

auto make_pipeline(RunConfig const& config) {  // threads and processes have the same trainer type
  return config.s.over_mpi() ? make_pipeline(config, Processes::device())
                             : make_pipeline(config, threads_of(config.s));
}

auto make_one_device(Settings const& s) {
  return make_model(s).on_one_device(adam, CrossEntropy<float>{}, options_of(s));
}

using Trainer = decltype(make_pipeline(std::declval<RunConfig const&>()));

/// Runs each step on one device as well, and compares the parameters with those of the pipeline.
class OneDeviceComparison {
 public:
  explicit OneDeviceComparison(RunConfig const& config)
      : one_(make_one_device(config.s)),
        descending_(gradient_order(table_of(config)) == GradientOrder::descending) {}

  /// Copies parameters and optimizer state from the pipeline, from all processes.
  void start(Trainer& train) {
    train.gather_parameters();
    auto const from = train.parameters();
    auto const to = one_.parameters();
    for (std::size_t i = 0; i < from.size(); ++i) {
      copy(from[i].value, to[i].value);
      for (std::size_t k = 0; k < 2; ++k) copy(from[i].state[k], to[i].state[k]);
    }
    one_.resume(train.steps());
  }

  void begin_step(Trainer&) const noexcept {}

  /// Takes the same step on one device.
  /// @return  a sentence about the first parameter that differs; empty if none does
  [[nodiscard]] std::string difference(Trainer& train, Batch const& batch, sg::Metrics const&) {
    step(batch, train.optimizer().rate);
    return difference(train);
  }

  void report() const {
    if (wall_s_.empty()) return;
    auto sorted = wall_s_;
    std::sort(sorted.begin(), sorted.end());
    std::printf("bit-equal to one device after every step; one device takes %s for a step\n",
                sg::report::format_seconds(sorted[sorted.size() / 2]).c_str());
  }

 private:
  void step(Batch const& batch, double rate) {
    one_.optimizer().rate = rate;
    double const begin_s = now_s();
    if (descending_) {  // reversed, to add gradients in the schedule's order
      Batch reversed{{batch.inputs.rbegin(), batch.inputs.rend()},
                     {batch.targets.rbegin(), batch.targets.rend()}};
      (void)one_.step(reversed);
    } else {
      (void)one_.step(batch);
    }
    wall_s_.push_back(now_s() - begin_s);
  }

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

  static void copy(std::span<std::byte const> from, std::span<std::byte> to) {
    std::copy(from.begin(), from.end(), to.begin());
  }

  decltype(make_one_device(std::declval<Settings const&>())) one_;
  bool descending_;
  std::vector<double> wall_s_;
};

/// Ranks on threads of this process, or in the processes of an MPI job.
class HostPlatform {
 public:
  using Trainer = gpt::Trainer;
  using Comparison = OneDeviceComparison;

  explicit HostPlatform(Settings const& s) : over_mpi_(s.over_mpi()) {}

  /// Refuses a model that does not fit into memory, before the machine swaps or kills the process.
  void require_memory(Settings const& s) const {
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

  [[nodiscard]] Trainer make(RunConfig const& config) const { return make_pipeline(config); }

  [[nodiscard]] bool is_first_process() const { return !over_mpi_ || Processes::first(); }

  /// Signals reach processes at different times; this makes all of them stop after the same step.
  [[nodiscard]] bool none_interrupted() const {
    if (!over_mpi_) return interrupted == 0;
    if (!Processes::any_process(interrupted != 0)) return true;
    interrupted = 1;
    return false;
  }

  [[nodiscard]] std::string describe_devices(RunConfig const& config) const {
    return over_mpi_ ? sg::counted(Processes::device().places(), "process")
                     : sg::counted(threads_of(config.s).places(), "thread");
  }

  [[nodiscard]] Forecast forecast(Settings const& s, Text const& text) const {
    return gpt::forecast(s, text);
  }
  [[nodiscard]] std::string compared(Forecast const& forecast, Record const& record,
                                     Trainer& train) const {
    return gpt::compared(forecast, record.step_s(), record.fastest_s(), train.memory());
  }

  [[nodiscard]] std::int64_t recorded_steps(Settings const&) const {
    return static_cast<std::int64_t>(Record::kept);
  }
  [[nodiscard]] sg::Metrics step(Trainer& train, Batch const& batch, bool) const {
    return sg::run(train.step(batch));
  }
  [[nodiscard]] double held_out_loss(Trainer& train, Batch const& batch) const {
    return sg::run(train.evaluate(batch)).loss;
  }
  [[nodiscard]] float const* logits(Trainer& train, Tokens const& window) {
    window_[0] = window;
    (void)sg::run(train.predict(window_, logits_));
    return logits_[0].data();
  }
  void report(Settings const&) const {}

  /// Logical or over all processes.
  [[nodiscard]] bool any_process(bool here) const {
    return over_mpi_ ? Processes::any_process(here) : here;
  }

 private:
  bool over_mpi_;
  std::vector<Tokens> window_{1};
  std::vector<Trainer::Output> logits_{1};
};

}  // namespace

Outcome train(Settings const& settings, char const* sources) {
  Settings s = settings;
  std::optional<Processes> processes;
  if (s.over_mpi()) processes.emplace();
  listen_for_interrupts();
  if (processes && !Processes::first()) {
    s.output = "none";
    if (std::freopen("/dev/null", "w", stdout) == nullptr)
      throw sg::Error(sg::Errc::io, "cannot write to /dev/null");
  }
  try {
    return Run<HostPlatform>(s, sources)();
  } catch (std::exception const& error) {
    if (!processes) throw;
    // Before MPI ends: launchers end all processes as soon as one has ended with an error.
    if (!processes->reported_elsewhere(error.what())) print_error(error);
    return Outcome::refused;
  }
}

}  // namespace gpt
