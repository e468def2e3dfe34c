// SPDX-License-Identifier: Apache-2.0
// A small VGG, trained with pipeline parallelism. `vgg --help` explains the flags.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/core/file.hpp>
#include <stagger/engine/groups.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/report/format.hpp>
#include <stagger/report/progress.hpp>
#include <stagger/report/split_plan.hpp>
#include <stagger/report/table.hpp>
#include <stagger/schedule/named.hpp>
#include <stagger/sim/clock.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/stagger.hpp>
#include <stagger/staleness/local_sgd.hpp>

#ifdef VGG_HAS_MPI
#include <stagger/collective/launcher.hpp>
#include <stagger/mpi/parameter_server.hpp>
#include <stagger/mpi/processes.hpp>
#include <stagger/mpi/session.hpp>

#include "../under_mpirun.hpp"
#endif

#include "images.hpp"
#include "layers/by_work.hpp"
#include "layers/learning_rate.hpp"
#include "paper.hpp"
#include "settings.hpp"
#include "split_brain.hpp"

namespace vgg {

namespace sg = stagger;

namespace {

/// Does something, or says in one line why not.
/// @return the exit code
template <class Do> int guarded(Do what) {
  try {
    what();
    return 0;
  } catch (std::bad_alloc const&) {
    std::fputs("vgg: there is not enough memory; use a smaller --width or --batch\n", stderr);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "vgg: %s\n", stagger::printable(error.what()).c_str());
  }
  return 2;
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// What pipelines that train together have in common.
struct Shared {
  sg::sim::Clock clock{};  ///< of --device clock
  /// A worker of the server of --period; null: there is one pipeline.
  std::function<sg::collective::ServerWorker(int)> worker{};
};

/// @param number  of the pipeline, among those that train together
template <class Chain>
auto make_pipeline(Settings const& s, Shared const& shared, std::int64_t number, Chain chain,
                   std::vector<double> work) {
  sg::schedule::Named const schedule{.name = s.schedule};
  int const workers = static_cast<int>(s.workers / s.pipelines());
  std::vector<int> const ranks(static_cast<std::size_t>(s.stages / schedule.chunks()), workers);
  auto const replicas =
      workers == 1 ? sg::Replicas{} : sg::Replicas::even(ranks.data(), ranks.size());
  sg::partition::LayerSplit<layers::ByWork> split{
      .group = static_cast<int>(s.mp),
      .over = {std::move(work), static_cast<int>(s.stages)},
      .threshold = s.threshold,
      .update =
          s.each_pass() ? sg::partition::Update::each_pass : sg::partition::Update::accumulate};
  sg::Options options{.seed = static_cast<std::uint64_t>(s.seed + number),  // other dropout in each
                      .deadline_s = 600,
                      .replicas = replicas};
  if (!s.each_pass()) options.clip_norm = 1;  // of all gradients, which must be there
  auto const with = [&](auto device, auto const&... more) {
    return sg::Pipeline{std::move(chain)}.with(
        split, schedule, sg::optimizer::AdamW{.weight_decay = 0.01},
        sg::loss::CrossEntropy<float>{}, std::move(device), options, more...);
  };
  auto const on = [&](auto device) {
    if (!shared.worker) return with(std::move(device));
    return with(std::move(device), sg::staleness::LocalSgd{.period = static_cast<int>(s.period)},
                shared.worker(static_cast<int>(number)));
  };
  if (s.device == "threads" || (s.device == "mpi" && shared.worker))
    return on(
        sg::host::Threads{static_cast<int>(std::max<std::int64_t>(1, s.threads / s.pipelines()))});
#ifdef VGG_HAS_MPI
  if (s.device == "mpi") return with(sg::mpi::Processes{});
#endif
  auto const layers = static_cast<int>(split.over.work.size());
  auto cluster = split_brain::cluster(
      s.shape(), split.cuts(layers), workers,
      static_cast<double>(s.minibatch().examples) / static_cast<double>(s.microbatches));
  cluster.clock = shared.clock;
  return on(std::move(cluster));
}

auto make_trainer(Settings const& s, Shared const& shared, std::int64_t number) {
  auto const seed = static_cast<std::uint64_t>(s.seed);
  return s.linear ? make_pipeline(s, shared, number, make_linear<float>(seed), {1})
                  : make_pipeline(s, shared, number, make_model<float>(s.shape(), seed),
                                  work_of(s.shape()));
}

using Trainer = decltype(make_trainer(std::declval<Settings const&>(),
                                      std::declval<Shared const&>(), std::int64_t{}));

/// The processes that --device mpi trains in, and which of them this one is.
struct World {
  int process = 0;
  int processes = 1;

#ifdef VGG_HAS_MPI
  [[nodiscard]] static World of_mpi() {
    World world;
    MPI_Comm_rank(MPI_COMM_WORLD, &world.process);
    MPI_Comm_size(MPI_COMM_WORLD, &world.processes);
    return world;
  }
#endif

  /// Does something in all processes, or throws in all what one of them has thrown.
  template <class Do> void agreed(Do what) const {
    std::exception_ptr failure;
    try {
      what();
    } catch (...) {
      failure = std::current_exception();
    }
    if (processes > 1) tell(failure);
    if (failure) std::rethrow_exception(failure);
  }

 private:
  void tell([[maybe_unused]] std::exception_ptr const& failure) const {
#ifdef VGG_HAS_MPI
    std::string words;
    int speaker = -1;
    bool cause = false;  // not because another one has failed
    try {
      if (failure) std::rethrow_exception(failure);
    } catch (sg::Error const& error) {
      words = error.what();
      cause = error.code() != sg::Errc::peer_failed;
    } catch (std::exception const& error) {
      words = error.what();
      cause = true;
    }
    if (failure) speaker = cause ? process + processes : process;
    MPI_Allreduce(MPI_IN_PLACE, &speaker, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (speaker < 0) return;
    auto size = static_cast<int>(words.size());
    MPI_Bcast(&size, 1, MPI_INT, speaker % processes, MPI_COMM_WORLD);
    words.resize(static_cast<std::size_t>(size));
    MPI_Bcast(words.data(), size, MPI_CHAR, speaker % processes, MPI_COMM_WORLD);
    throw sg::Error(sg::Errc::peer_failed, words);
#endif
  }
};

/// The pipelines of this process, where groups that --period averages may have one each.
class Team {
 public:
  /// Pipeline n is in process n mod P of P.
  Team(Settings const& s, World const& world)
      : world_(s.period > 0 ? world : World{}), losses_(static_cast<std::size_t>(s.pipelines())) {
#ifdef VGG_HAS_MPI
    if (world_.processes > s.pipelines())
      sg::raise(sg::Errc::bad_configuration, "--period averages ",
                sg::counted(s.pipelines(), "group"), ", which cannot be spread over ",
                sg::counted(world_.processes, "process"), "; start at most one for each");
    if (s.period > 0 && s.device == "mpi") {
      over_processes_.emplace(
          sg::mpi::ServerOptions{.workers = static_cast<int>(s.pipelines()), .deadline_s = 600});
      shared_.worker = [this](int n) { return over_processes_->worker(n); };
    }
#endif
    if (s.period > 0 && s.device != "mpi") {
      here_.emplace(sg::collective::ServerOptions{.workers = static_cast<int>(s.pipelines())});
      shared_.worker = [this](int n) { return here_->worker(n); };
    }
    world_.agreed([&] {
      for (std::int64_t n = world_.process; n < s.pipelines(); n += world_.processes) {
        numbers_.push_back(n);
        trainers_.push_back(make_trainer(s, shared_, n));
      }
    });
  }
  Team(Team const&) = delete;
  Team& operator=(Team const&) = delete;

  /// Keeps weights available until all pipelines of other processes have ended, too.
  void end() {
    trainers_.clear();
#ifdef VGG_HAS_MPI
    if (over_processes_) over_processes_->serve();
#endif
  }

  [[nodiscard]] std::vector<std::int64_t> const& numbers() const noexcept { return numbers_; }
  [[nodiscard]] std::vector<Trainer>& trainers() noexcept { return trainers_; }
  [[nodiscard]] double now_s() const { return shared_.clock.now_s(); }

  /// Takes a step of every pipeline, each with a batch of its own. @return the mean loss of all
  double step(std::vector<Batch> const& batches) {
    if (losses_.size() == 1) return sg::run(trainers_[0].step(batches[0])).loss;
    losses_.assign(losses_.size(), 0);
    world_.agreed([&] {
      std::vector<sg::Step> steps;
      for (std::size_t k = 0; k < trainers_.size(); ++k)
        steps.push_back(trainers_[k].step(batches[k]));
      auto const metrics = sg::run_together(std::move(steps));
      for (std::size_t k = 0; k < metrics.size(); ++k)
        losses_[static_cast<std::size_t>(numbers_[k])] = metrics[k].loss;
    });
#ifdef VGG_HAS_MPI
    if (world_.processes > 1)  // all but one of them add 0 to each loss
      MPI_Allreduce(MPI_IN_PLACE, losses_.data(), static_cast<int>(losses_.size()), MPI_DOUBLE,
                    MPI_SUM, MPI_COMM_WORLD);
#endif
    double sum = 0;
    for (double const loss : losses_) sum += loss;
    return sum / static_cast<double>(losses_.size());
  }

 private:
  World world_;  // that shares the pipelines
  std::optional<sg::collective::ParameterServer> here_;
#ifdef VGG_HAS_MPI
  std::optional<sg::mpi::ParameterServer> over_processes_;
#endif
  Shared shared_;
  std::vector<std::int64_t> numbers_;  // of the pipelines
  std::vector<Trainer> trainers_;
  std::vector<double> losses_;  // [pipelines of all processes]
};

/// The share of images whose largest logit is that of their label.
double accuracy(Trainer& train, Images const& images, Minibatch const& minibatch) {
  Batch batch;
  std::vector<Trainer::Output> logits(minibatch.microbatches);
  std::size_t right = 0;
  for (std::size_t begin = 0; begin < images.size(); begin += minibatch.examples) {
    // Every batch is full: the last one begins with images that have been counted.
    std::size_t const first = std::min(begin, images.size() - minibatch.examples);
    images.take(first, minibatch, batch);
    sg::run(train.predict(batch.inputs, logits));
    for (std::size_t m = 0; m < minibatch.microbatches; ++m)
      for (std::size_t r = 0; r < minibatch.rows(m); ++r) {
        float const* const row = logits[m].data() + r * classes;
        bool const counts = first + minibatch.first(m) + r >= begin;
        if (counts && std::max_element(row, row + classes) - row == batch.targets[m][r]) ++right;
      }
  }
  return static_cast<double>(right) / static_cast<double>(images.size());
}

DataSet read_data(Settings const& s) {
  constexpr std::size_t training = 10000;
  constexpr std::size_t held_out = 1000;
  if (!s.data.empty()) return read_cifar(s.data);
  return make_textures(static_cast<std::uint64_t>(s.seed), training, held_out);
}

/// What each group of ranks shares.
void print_split(Settings const& s) {
  auto const features = features_of(s.shape());
  auto const plan = sg::partition::plan_split(
      features, {.group = static_cast<int>(s.mp), .threshold = s.threshold});
  if (!plan.splits()) {
    std::fprintf(stderr,
                 "note: no dense layer has more than %s operations for each number exchanged, so "
                 "every rank has all layers; use a smaller --threshold\n",
                 sg::report::format_fixed(s.threshold, 1).c_str());
    return;
  }
  auto const rows = static_cast<std::size_t>(s.batch / s.workers);
  std::fprintf(stderr, "the first member of each group, and what it sends for %s of its own:\n%s",
               sg::counted(rows, "image").c_str(),
               sg::report::table({plan, features}, 0, rows).c_str());
  if (s.picture.empty()) return;
  int const lanes = static_cast<int>(std::min<std::int64_t>(s.mp, 8)) + 1;
  sg::write_file(s.picture, sg::report::svg({plan, features}, rows,
                                            {.width = 86 + std::max(600, 140 * lanes),
                                             .title = "examples/vgg",
                                             .theme = sg::report::SvgTheme::automatic}));
}

/// Makes sure that a file can be written, before anything is computed.
void require_file(std::string const& name) {
  if (!name.empty()) sg::WholeFile const probe(name);  // not committed, so no file remains
}

/// What the ranks run on.
std::string places_of(Settings const& s) {
#ifdef VGG_HAS_MPI
  if (s.device == "mpi") return sg::counted(sg::mpi::Processes{}.places(), "process");
#endif
  return sg::counted(s.threads, "thread");
}

struct Result {
  double loss = 0;
  double accuracy = 0;  ///< share of the held-out images that are right
  double images_s = 0;  ///< with --device clock in virtual time
};

Result train(Settings const& s, World const& world) {
  DataSet data;
  world.agreed([&] {
    require_file(s.picture);
    data = read_data(s);
  });
  auto const images = static_cast<std::int64_t>(data.training.size());
  std::int64_t const steps = s.epochs > 0 ? (s.epochs * images + s.batch - 1) / s.batch : s.steps;
  Team team(s, world);
  Trainer& train = team.trainers().front();
  std::size_t parameters = 0;
  for (auto const& shape : train.parameter_shapes()) parameters += shape.bytes / sizeof(float);
  std::string const where =
      s.device == "clock" ? "the cluster of SplitBrain's paper, in virtual time" : places_of(s);
  std::fprintf(stderr, "%s parameters in %s of %s on %s, %s; %s to learn from, %s held out\n",
               sg::report::format_count(static_cast<double>(parameters)).c_str(),
               sg::counted(s.stages, "stage").c_str(), sg::counted(s.workers, "rank").c_str(),
               where.c_str(), s.schedule.c_str(), sg::counted(images, "image").c_str(),
               sg::counted(data.held_out.size(), "image").c_str());
  if (s.mp > 1 && !s.linear) print_split(s);
  auto options = sg::report::progress_options(stderr);
  options.unit = "images";
  double const begin_s = now_s();
  sg::report::Progress progress(stderr, options, steps, 0, begin_s);
  std::vector<Batch> batches(team.trainers().size());
  double loss = 0;
  double virtual_s = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    for (std::size_t k = 0; k < batches.size(); ++k) {
      data.training.draw(static_cast<std::uint64_t>(s.seed),
                         step * s.pipelines() + team.numbers()[k], s.minibatch(), batches[k]);
      team.trainers()[k].optimizer().rate = layers::cosine_rate(s.rate, step, 30, steps);
    }
    double const step_s = team.now_s();
    loss = team.step(batches);
    virtual_s += team.now_s() - step_s;
    if (!std::isfinite(loss))
      sg::raise(sg::Errc::bad_configuration, "the loss of step ", step + 1,
                " is not finite; use a smaller --rate");
    progress.update(step + 1, loss, static_cast<double>((step + 1) * s.batch), now_s());
    if (s.evaluate > 0 && (step + 1) % s.evaluate == 0 && step + 1 < steps) {
      progress.clear();
      std::printf("step %lld: loss %.4f, held-out accuracy %.1f %%\n",
                  static_cast<long long>(step + 1), loss,
                  100 * accuracy(train, data.held_out, s.minibatch()));
    }
  }
  progress.finish();
  double const trained_s = now_s() - begin_s;
  Result const result{.loss = loss,
                      .accuracy = accuracy(train, data.held_out, s.minibatch()),
                      .images_s = static_cast<double>(steps * s.batch) /
                                  (s.device == "clock" ? virtual_s : trained_s)};
  std::printf("loss %.4f, held-out accuracy %.1f %% after %s in %s\n", loss, 100 * result.accuracy,
              sg::counted(steps, "step").c_str(), sg::report::format_seconds(trained_s).c_str());
  if (s.device == "clock")
    std::printf("%s images/s in virtual time\n",
                sg::report::format_fixed(result.images_s, 2).c_str());
  team.end();
  return result;
}

/// Trains with groups of each size that divides --mp, and prints what comes out side by side.
void compare(Settings const& s, World const& world) {
  auto const features = features_of(s.shape());
  auto const rows = static_cast<std::size_t>(s.batch / s.workers);
  sg::report::TextTable table({"members", "parameters of a rank", "sent in groups", "loss",
                               "held-out accuracy", "images/s"});
  for (Settings const& each : s.compared()) {
    Result const result = train(each, world);
    int const members = static_cast<int>(each.mp);
    auto const plan =
        sg::partition::plan_split(features, {.group = members, .threshold = s.threshold});
    std::size_t sent = 0;
    for (std::size_t l = 0; members > 1 && l <= features.size(); ++l) {
      auto const here = sg::partition::elements_sent(plan, l, 0, rows);
      sent += here.forward + here.backward;
    }
    using sg::report::format_fixed;
    table.add({std::to_string(members),
               std::to_string(sg::partition::parameters_of(plan, features, 0)),
               std::to_string(sent), format_fixed(result.loss, 4),
               format_fixed(100 * result.accuracy, 1) + " %", format_fixed(result.images_s, 1)});
  }
  std::printf("\nWith %s of a rank in a step, and the numbers that it sends for them:\n%s",
              sg::counted(rows, "image").c_str(), table.str().c_str());
}

/// What the flags ask for.
void work(Settings const& s, World const& world = {}) {
  if (s.compare)
    compare(s, world);
  else
    train(s, world);
}

void print_paper(Settings const& s) {
  require_file(s.chart);
  std::fputs(claims_of_split_brain().c_str(), stdout);
  if (!s.chart.empty()) sg::write_file(s.chart, trade_off_of_split_brain());
}

/// Trains in processes of MPI, of which the first one speaks, and starts them if nobody has.
/// @return the exit code
int train_over_mpi([[maybe_unused]] Settings s, [[maybe_unused]] int argc,
                   [[maybe_unused]] char** argv) {
#ifdef VGG_HAS_MPI
  if (!sg::collective::find_launch())
    return cli::run_under_mpirun(VGG_MPIEXEC, s.period > 0 ? s.pipelines() : s.ranks(), argc, argv);
  // A parameter server answers on threads of its own. At the session's end all wait for each other,
  // so that the first one has said what is wrong.
  sg::mpi::Session const session(s.period > 0 ? sg::mpi::Threads::multiple
                                              : sg::mpi::Threads::serialized);
  World const world = World::of_mpi();
  if (world.process != 0) {
    cli::say_nothing();
    s.picture.clear();
  }
  return guarded([&] { work(s, world); });
#else
  cli::refuse("--device mpi needs an MPI, without which this program was built");
#endif
}

}  // namespace
}  // namespace vgg

int main(int argc, char** argv) {
  int code = 0;
  int const failed = vgg::guarded([&] {
    auto const settings = vgg::parse(argc, argv);
    if (!settings) return;
    if (settings->paper)
      vgg::print_paper(*settings);
    else if (settings->device == "mpi")
      code = vgg::train_over_mpi(*settings, argc, argv);
    else
      vgg::work(*settings);
  });
  return failed != 0 ? failed : code;
}
