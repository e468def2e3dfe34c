// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <vector>

#include <stagger/placement/catalog.hpp>

#include "command_line.hpp"
#include "staleness_models.hpp"

namespace hetero {

namespace {

namespace placement = stagger::placement;

/// Refuses a word that a flag does not know, and lists those that it knows.
template <class Known = std::initializer_list<std::string_view>>
void require_word(std::string const& flag, std::string const& word, Known const& known) {
  if (std::find(known.begin(), known.end(), word) != known.end()) return;
  std::string all;
  for (std::string_view const each : known) all.append(all.empty() ? "" : ", ").append(each);
  cli::refuse(flag + " knows no '" + word + "'; there are: " + all);
}

std::string help_of_models() {
  std::string help = "How far workers may drift apart:";
  for_each_model([&](auto const& entry) {
    help.append(help.back() == ':' ? " " : "; ").append(entry.name).append(", ").append(entry.what);
  });
  return help;
}

/// A text that explains all policies of a list.
std::string help_of(std::string help, auto const& lines, char const* between) {
  auto const add = [&](auto const& line) {
    if (help.back() != ' ') help += between;
    help.append(line.what).append(" (").append(line.name).append(")");
  };
  lines.for_each(add);
  return help;
}

/// Which flags have a meaning for any of the models that are run.
Takes takes_of(Settings const& s) {
  Takes all;
  for_each_model([&](auto const& entry) {
    if (!s.compare && entry.name != s.sync) return;
    all.bound |= entry.takes.bound;
    all.distance |= entry.takes.distance;
    all.period |= entry.takes.period;
    all.exact |= entry.takes.exact;
    all.pushes |= entry.takes.pushes;
    all.late |= entry.takes.late;
  });
  return all;
}

/// Refuses flags that change nothing in this run.
void require_use(CLI::App const& app, Settings const& s) {
  auto const refuse = [&](char const* flag, bool used, std::string const& why) {
    if (app.count(flag) != 0 && !used) cli::refuse(std::string(flag) + " " + why);
  };
  Takes const takes = takes_of(s);
  std::string const why = "changes nothing with --sync " + s.sync + "; leave it out";
  refuse("--distance", takes.distance, why);
  refuse("--bound", takes.bound, why);
  refuse("--period", takes.period, why);
  refuse("--exact", takes.exact, why);
  refuse("--pushes", takes.pushes, why);
  refuse("--late", takes.late, why);
  refuse("--whole-layers", takes.late, why);
  if (app.count("--pushes") != 0 && s.exact && s.pushes == "gradients")
    cli::refuse("--pushes gradients lets a worker of --exact lack its own; take --pushes changes");
  refuse("--sync", !s.compare, "names one model, and --compare runs all; leave one of them out");
  refuse("--trace", !s.compare, "shows one run, and --compare makes several; leave it out");
  for (char const* const flag : {"--cluster", "--link"})
    refuse(flag, s.timed(), "is a part of --device clock; leave it out");
  bool const hetpipe = s.timed() && s.cluster != "equal";
  for (char const* const flag : {"--gpus", "--allocation", "--parameters"})
    refuse(flag, hetpipe, "is for the GPUs of --cluster vgg-19 or resnet-152; leave it out");
  refuse("--parameters", s.link == 0,
         "says nothing where --link gives the link; leave one of them out");
  if (!hetpipe) return;
  refuse("--workers", s.workers == 4, "is 4 on --cluster " + s.cluster + "; take --cluster equal");
  refuse("--stages", false,
         "are the GPUs of a worker on --cluster " + s.cluster +
             "; leave it out, or take --cluster equal");
  bool const equal = placement::Allocation(s.allocation) == placement::EqualDistribution{};
  if (placement::ParameterPlacement(s.parameters) == placement::Local{} && !equal)
    cli::refuse("--parameters " + s.parameters +
                " keeps a layer where all workers have it; leave --allocation out");
  if (s.gpus.size() != 4 && !equal)
    cli::refuse("--allocation " + s.allocation + " is for all four kinds of GPU; leave --gpus out");
}

/// Kinds of GPU, each at most once.
void require_gpus(std::string const& letters) {
  bool good = letters.size() >= 2 && letters.size() <= 4;
  for (std::size_t i = 0; i < letters.size(); ++i)
    good = good && std::string_view("VRGQ").find(letters[i]) != std::string_view::npos &&
           letters.find(letters[i], i + 1) == std::string::npos;
  if (!good)
    cli::refuse("--gpus '" + letters + "' cannot be used; give two to four of the letters VRGQ");
}

/// Whether a flag leaves it to --paper what is run.
bool allowed_with_paper(std::string const& paper, std::string const& flag) {
  if (flag == "--steps") return paper == "osp";
  for (char const* const each : {"--seed", "--seeds", "--csv", "--chart"})
    if (flag == each) return true;
  return false;
}

}  // namespace

void Settings::check() const {
  using cli::require;
  require_word("--model", model, {"gpt", "vgg"});
  require_word("--sync", sync, names_of_models());
  require_word("--device", device, {"threads", "mpi", "tcp", "clock"});
  require_word("--pushes", pushes, {"gradients", "changes"});
  require_word("--cluster", cluster, {"vgg-19", "resnet-152", "equal"});
  require_gpus(gpus);
  require_word("--allocation", allocation, placement::Allocation::names);
  require_word("--parameters", parameters, placement::ParameterPlacement::names);
  require("--workers", workers, 1, 64);
  require("--stages", stages, 1, model == "vgg" ? 13 : 6);
  require("--in-flight", in_flight, 1, 1000);
  require("--distance", distance, 0, 1'000'000);
  require("--bound", bound, 0, 1'000'000);
  require("--period", period, 1, 1'000'000);
  if (!(late >= 0 && late <= 0.8))
    cli::refuse("--late " + cli::number(late) + " cannot be used; give a share of 0 to 0.8");
  require("--steps", steps, 1, 1'000'000);
  require("--batch", batch, 1, 1000);
  require("--seeds", seeds, 1, 100);
  require("--seed", seed, 0, std::numeric_limits<std::int64_t>::max());
}

std::optional<Settings> parse(int argc, char const* const* argv) {
  Settings s;
  CLI::App app{"Trains one model by several workers, each a pipeline, through a parameter server.",
               "hetero"};
  cli::prepare(app);

  app.option_defaults()->group("What is trained, and how");
  app.add_option("--model", s.model,
                 "gpt: the transformer of examples/gpt; vgg: the network of examples/vgg");
  app.add_option("--sync", s.sync, help_of_models());
  app.add_flag("--compare", s.compare, "Run all of them, and rank them by the time to --target");
  auto* const paper =
      app.add_option("--paper", s.paper,
                     "hetpipe or osp: the paper's claims, published and as they come out here");
  auto* const seeds =
      app.add_option("--seeds", s.seeds, "--paper: how often each run is made, with other seeds");
  app.add_option("--workers", s.workers, "Pipelines that train together");
  app.add_option("--stages", s.stages, "Stages of each");
  app.add_option("--in-flight", s.in_flight,
                 "Minibatches in a push: a wave of wsp, the microbatches of any other's step");
  app.add_option("--distance", s.distance, "wsp: how many waves a worker may be ahead");
  app.add_option("--bound", s.bound, "ssp: how many steps a worker may be ahead");
  app.add_option("--period", s.period, "local-sgd: steps between two means");
  app.add_option("--late", s.late, "osp: share of the bytes that are exchanged in the next step");
  app.add_flag("--whole-layers", s.whole_layers,
               "osp: send no layer late in part, whatever share the whole ones make up");
  app.add_flag("--exact", s.exact,
               "ssp, wsp: add pushes in the order of workers, for the same bits at any timing");
  app.add_option(
      "--pushes", s.pushes,
      "asp, ssp: gradients, for the server's optimizer; changes, by each worker's own, as "
      "ssp takes with --exact");
  auto* const steps = app.add_option("--steps", s.steps,
                                     "Steps of each worker; wsp: waves; --paper osp: of each run, "
                                     "in whole epochs; left out: as many as it takes to learn");
  app.add_option("--batch", s.batch, "Examples of a minibatch");
  auto* const rate =
      app.add_option("--rate", s.rate,
                     "Learning rate of all workers together; left out: one that suits the model");
  auto* const target = app.add_option(
      "--target", s.target, "Loss whose time is reported; left out: one that the model reaches");
  app.add_option("--seed", s.seed, "Seed of everything random");

  app.option_defaults()->group("Where it runs");
  app.add_option(
      "--device", s.device,
      "threads: of this machine; mpi: a process for each worker, under mpirun; tcp: likewise, "
      "with a server on a port of this machine; clock: in virtual time, on the cluster below");
  app.add_option("--cluster", s.cluster,
                 "Times of VGG-19 (vgg-19) or ResNet-152 (resnet-152) on HetPipe's 16 GPUs, or of "
                 "stages of 1 s (equal)");
  app.add_option("--gpus", s.gpus, "Kinds of HetPipe's GPUs that take part, four of each")
      ->type_name("LETTERS");
  app.add_option("--allocation", s.allocation,
                 help_of("GPUs of each worker: ", placement::allocation_lines, ", "));
  app.add_option(
      "--parameters", s.parameters,
      help_of("Where a layer's parameters lie: ", placement::parameter_placement_lines, ", or "));
  auto* const link =
      app.add_option("--link", s.link,
                     "Instead of the cluster's own links: how long the pushes of all workers take, "
                     "relative to computing one");

  app.option_defaults()->group("Output");
  app.add_option("--csv", s.csv, "File for each minibatch's times and loss")->type_name("FILE");
  app.add_option("--trace", s.trace,
                 "File for a trace of the workers and the server, which ui.perfetto.dev opens")
      ->type_name("FILE");
  app.add_option("--chart", s.chart, "File for a picture (SVG) of the loss over time")
      ->type_name("FILE");
  app.footer(std::string("Example: hetero --sync wsp --distance 4 --parameters local\n") +
             cli::outputs);

  if (!cli::parsed(app, argc, argv)) return std::nullopt;
  if (app.count("--cluster") == 0 && app.count("--workers") + app.count("--stages") != 0)
    s.cluster = "equal";
  if (s.cluster == "equal" && link->count() == 0) s.link = 1;
  if (s.timed() && s.cluster != "equal") s.stages = static_cast<std::int64_t>(s.gpus.size());
  if (paper->count() != 0) {
    require_word("--paper", s.paper, {"hetpipe", "osp"});
    for (char const* const flag : {"--csv", "--chart"})
      if (s.paper == "osp" && app.count(flag) != 0)
        cli::refuse(std::string(flag) + " is not written by --paper osp; leave it out");
    for (auto const* const option : app.get_options())
      if (option->count() != 0 && option != paper &&
          !allowed_with_paper(s.paper, option->get_name()))
        cli::refuse(option->get_name() + " is chosen by --paper; leave it out");
  }
  if (steps->count() != 0) s.paper_steps = s.steps;
  if (paper->count() == 0 && seeds->count() != 0)
    cli::refuse("--seeds says how often --paper makes each run; add --paper, or leave it out");
  s.check();
  if (rate->count() != 0) cli::require_positive("--rate", s.rate);
  if (target->count() != 0) cli::require_positive("--target", s.target);
  if (link->count() != 0) cli::require_positive("--link", s.link);
  require_use(app, s);
  return s;
}

}  // namespace hetero
