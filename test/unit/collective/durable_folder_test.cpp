// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/detail/durable_folder.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/model/optimizer.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>

#include "../temporary_folder.hpp"
#include "full.hpp"
#include "sanitized.hpp"

namespace durable_folder_test {

namespace {

namespace sg = stagger;
namespace files = std::filesystem;
using sg::collective::OnFailure;
using sg::collective::ServerOptions;
using sg::collective::detail::Ask;
using sg::collective::detail::ServerInProcess;
using sg::detail::LayerParameters;
using sg::detail::WorkerRules;
using sg::staleness::Adds;
using sg::staleness::Pushes;

constexpr std::size_t layers = 3;  // of which the last has no parameters
constexpr std::size_t length = 16;
using Values = std::array<float, length>;

std::string contents(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write(std::string const& path, std::string const& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}
/// The checksum of checkpoints, by its definition.
std::string sealed(std::string bytes) {
  std::uint64_t h = 0x9e3779b97f4a7c15U;
  for (std::size_t i = 0; i + 8 < bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    h = (h ^ word) * 0xff51afd7ed558ccdU;
    h ^= h >> 32U;
  }
  std::memcpy(bytes.data() + bytes.size() - 8, &h, 8);
  return bytes;
}
template <class F> std::string refusal(F const& f) {
  try {
    static_cast<void>(f());
  } catch (sg::Error const& error) {
    return error.what();
  }
  return "accepted";
}

std::vector<LayerParameters> model(char const* name = "w", std::size_t size = length) {
  std::vector<LayerParameters> all(layers);
  for (std::size_t l = 0; l < layers; ++l) {
    sg::List<sg::detail::ParameterDeclaration> declared;
    sg::detail::ParameterDeclaration d;
    d.name = name;
    d.size = size;
    d.initial.assign(size * sizeof(float), std::byte{0});
    if (l + 1 != layers) declared.push_back(std::move(d));
    all[l].adopt(std::move(declared), static_cast<int>(l), 0);
  }
  return all;
}

sg::List<std::uint64_t> digests() {
  sg::List<std::uint64_t> all;
  for (auto const& layer : model())
    all.push_back(sg::collective::detail::values_digest(layer.values()));
  return all;
}

sg::optimizer::AdamW const adam{.rate = 0.1};

WorkerRules rules(Adds adds = Adds::in_worker_order, Pushes pushes = Pushes::changes,
                  sg::optimizer::AdamW const& optimizer = adam) {
  WorkerRules made;
  made.adds = adds;
  made.pushes = pushes;
  made.ahead = 2;
  made.optimizer = sg::detail::optimizer_call<true>(optimizer);
  return made;
}

/// What a worker knows of its stream, as one in another process would.
struct Worker final : sg::detail::ParameterListener {
  int client = 0;
  bool running = false;
  bool gave_up = false;
  std::uint32_t failures = 0;
  std::uint32_t round = 0;                 // of the pushes that it makes
  std::array<bool, layers> pushed{};       // in this round
  std::array<std::uint32_t, layers> here;  // rounds of the last answer
  void arrived(std::size_t l, std::uint32_t rounds) noexcept override { here[l] = rounds; }
  void lost(std::exception_ptr) noexcept override { gave_up = true; }
};

/// A server and workers that push to it layer by layer and wait for the answers.
class Run {
 public:
  Run(ServerOptions options, WorkerRules const& made) : options_(std::move(options)), rules_(made) {
    workers_.resize(static_cast<std::size_t>(options_.workers));
    for (auto& each : workers_) each = std::make_unique<Worker>();
    start();
  }
  /// The process is killed, and another one starts.
  void restart() {
    for (std::size_t l = 0; options_.log && l < layers; ++l) logs_[l] = added(l);
    server_ = nullptr;
    start();
    for (auto& each : workers_) {
      if (!each->running) continue;
      REQUIRE((server_->resume(each->client, each->failures) == nullptr) == !each->gave_up);
      for (std::size_t l = 0; l < layers; ++l)
        if (each->pushed[l] && !each->gave_up) server_->ask(each->client, l, {each->round});
    }
  }
  [[nodiscard]] Worker& worker(std::size_t n) { return *workers_[n]; }

  /// @return whether the server has let it
  bool begin(std::size_t n) {
    Worker& own = *workers_[n];
    try {
      own.failures = server_->begin(own.client);
    } catch (sg::Error const&) {
      return false;
    }
    own.running = true;
    own.gave_up = false;
    own.round = 1;
    own.pushed = {};
    own.here = {};
    for (std::size_t l = 0; l < layers; ++l) server_->read(own.client, l, bytes_.data());
    return true;
  }
  void push(std::size_t n, std::size_t l, Values const& values, bool last) {
    Worker& own = *workers_[n];
    server_->push(own.client, l, reinterpret_cast<std::byte const*>(values.data()), last, {}, true);
    own.pushed[l] = true;
    server_->ask(own.client, l, {own.round});
  }
  void push_part(std::size_t n, std::size_t l, Values const& values, sg::detail::ByteRange part) {
    server_->push(workers_[n]->client, l, reinterpret_cast<std::byte const*>(values.data()), false,
                  part, true);
  }
  /// The values of a layer that has been answered for.
  Values take(std::size_t n, std::size_t l) {
    server_->take(workers_[n]->client, l, workers_[n]->round, bytes_.data());
    return values();
  }
  void end(std::size_t n, bool fails) {
    workers_[n]->running = false;
    server_->end(workers_[n]->client, fails);
  }
  /// All that can be seen of a layer.
  [[nodiscard]] std::string state(std::size_t l) {
    std::string all = server_->look_at(l, [](auto const& history) {
      std::string counts = std::to_string(history.total());
      for (int n = 0; n < 2; ++n)
        for (auto const missed : history.missed(n)) counts += ' ' + std::to_string(missed);
      return counts;
    });
    for (auto& each : workers_) all += '/' + std::to_string(server_->pushes(each->client, l));
    return all;
  }
  /// The workers whose pushes were added, in order, by this server and by those before it.
  [[nodiscard]] std::vector<int> added(std::size_t l) {
    std::vector<int> all = logs_[l];
    for (auto const& event : sg::collective::detail::log_of(*server_, l))
      if (event.kind == sg::collective::ServerEvent::Kind::added) all.push_back(event.worker);
    return all;
  }
  [[nodiscard]] Values newest(std::size_t l) {  // of a worker that is not in a stream
    server_->read(workers_[0]->client, l, bytes_.data());
    return values();
  }

 private:
  void start() {
    server_ = std::make_shared<ServerInProcess>(options_);
    for (std::size_t n = 0; n < workers_.size(); ++n)
      workers_[n]->client =
          server_->join(static_cast<int>(n), model(), digests(), rules_, *workers_[n]);
  }
  [[nodiscard]] Values values() const {
    Values all;
    std::memcpy(all.data(), bytes_.data(), sizeof all);
    return all;
  }

  ServerOptions options_;
  WorkerRules rules_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::shared_ptr<ServerInProcess> server_;
  std::array<std::vector<int>, layers> logs_;  // of servers that were killed
  std::vector<std::byte> bytes_ = std::vector<std::byte>(length * sizeof(float));
};

/// One history, of a server that is killed now and then and of one that is not.
void compare(unsigned seed) {
  std::mt19937 random(seed);
  auto const adds =
      std::array{Adds::on_arrival, Adds::in_worker_order, Adds::in_turn}[random() % 3];
  auto const pushes = std::array{Pushes::gradients, Pushes::changes, Pushes::weights}[random() % 3];
  auto const on_failure = random() % 2 == 0 ? OnFailure::fail_fast : OnFailure::go_on;
  TemporaryFolder const folder;
  ServerOptions options{
      .workers = 2 + static_cast<int>(random() % 2), .log = true, .on_failure = on_failure};
  Run kept(options, rules(adds, pushes));
  options.durable = folder.path();
  Run killed(options, rules(adds, pushes));
  CAPTURE(seed, static_cast<int>(adds), static_cast<int>(pushes), options.workers);
  auto const both = [&](auto act) {
    act(kept);
    act(killed);
  };
  for (int i = 0; i < 60; ++i) {
    CAPTURE(i);
    auto const n = random() % static_cast<unsigned>(options.workers);
    auto const l = random() % layers;
    auto const what = random() % 16;
    Worker& own = kept.worker(n);
    REQUIRE(own.gave_up == killed.worker(n).gave_up);
    REQUIRE(own.here == killed.worker(n).here);
    if (own.running && own.gave_up) {
      both([&](Run& run) { run.end(n, true); });
    } else if (!own.running) {
      bool const let = kept.begin(n);
      REQUIRE(killed.begin(n) == let);
    } else if (what == 0) {
      both([&](Run& run) { run.end(n, true); });
    } else if (what == 1) {
      both([&](Run& run) { run.end(n, false); });
    } else if (!own.pushed[l]) {
      Values values;
      for (float& value : values) value = static_cast<float>(random() % 1000) / 8 - 60;
      both([&](Run& run) { run.push(n, l, values, false); });
    } else if (own.here[l] == own.round) {
      Values const here = kept.take(n, l);
      if (l + 1 != layers) REQUIRE(killed.take(n, l) == here);
    }
    if (own.running && own.pushed == std::array<bool, layers>{true, true, true} &&
        own.here == std::array{own.round, own.round, own.round})
      both([&](Run& run) {
        run.worker(n).pushed = {};
        ++run.worker(n).round;
      });
    if (random() % 4 == 0) killed.restart();
    for (std::size_t layer = 0; layer < layers; ++layer)
      REQUIRE(killed.state(layer).substr(killed.state(layer).find('/')) ==
              kept.state(layer).substr(kept.state(layer).find('/')));
    for (std::size_t layer = 0; layer < layers; ++layer)
      REQUIRE(killed.added(layer) == kept.added(layer));
  }
  both([&](Run& run) {
    for (std::size_t n = 0; n < static_cast<std::size_t>(options.workers); ++n) run.end(n, true);
  });
  for (std::size_t layer = 0; layer + 1 < layers; ++layer)
    REQUIRE(killed.newest(layer) == kept.newest(layer));
}

/// A folder in which two workers have pushed something.
void fill(TemporaryFolder const& folder, std::string const& name = {}) {
  Run run({.workers = 2, .durable = folder.path(), .run = name}, rules());
  REQUIRE((run.begin(0) && run.begin(1)));
  for (std::size_t l = 0; l < layers; ++l) run.push(0, l, Values{1, 2, 3}, false);
  run.push(1, 0, Values{4, 5, 6}, false);
}

}  // namespace

TEST_CASE(
    "collective/DurableFolder: a server that is killed at any moment goes on as one that is not",
    "[collective]") {
  int const histories = full() ? 3000 : sanitized ? 20 : 100;
  for (int seed = 0; seed < histories; ++seed) compare(static_cast<unsigned>(seed));
}

TEST_CASE(
    "collective/DurableFolder: every truncation, every changed byte and every missing file is "
    "refused",
    "[collective]") {
  TemporaryFolder const folder;
  fill(folder);
  auto const opened = [&] {
    return refusal(
        [&] { return sg::collective::ParameterServer({.workers = 2, .durable = folder.path()}); });
  };
  REQUIRE(folder.names() == std::vector<std::string>{"layer-000000.stagger", "layer-000001.stagger",
                                                     "layer-000002.stagger", "lock",
                                                     "server.stagger"});
  REQUIRE(opened() == "accepted");
  for (std::string const& name :
       {std::string("layer-000001.stagger"), std::string("server.stagger")}) {
    CAPTURE(name);
    std::string const path = folder / name;
    std::string const whole = contents(path);
    auto const refused = [&](std::string const& bytes) {
      write(path, bytes);
      std::string const said = opened();
      return said.find(path) != said.npos && said.find(" is damaged: it ") != said.npos &&
             said.find("; name another folder, or remove this one") != said.npos;
    };
    for (std::size_t size = 0; size < whole.size(); ++size) {
      CAPTURE(size);
      REQUIRE(refused(whole.substr(0, size)));
    }
    REQUIRE(refused(whole + std::string(8, '\0')));
    for (std::size_t i = 0; i < whole.size(); ++i) {
      CAPTURE(i);
      auto changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ (1 << i % 8));
      REQUIRE(refused(changed));
    }
    // Numbers that no server writes, under a right checksum: refused, or a state that there can be.
    std::mt19937 random(1);
    for (std::size_t i = 0; i + 16 <= whole.size(); i += 8)
      for (std::uint64_t const word :
           {std::uint64_t{random()}, ~std::uint64_t{0}, std::uint64_t{1} << 40U}) {
        auto changed = whole;
        std::memcpy(changed.data() + i, &word, 8);
        write(path, sealed(changed));
        CHECK(opened() != "");
      }
    files::remove(path);
    std::string const said = opened();
    if (name == "server.stagger")
      CHECK(said == "accepted");  // there is no run yet
    else
      CHECK(said == "the folder " + folder.path() +
                        " of a parameter server is incomplete: it has no " + name +
                        "; put all of its files there, or name another folder, or remove this one "
                        "and begin anew");
    write(path, whole);
    REQUIRE(opened() == "accepted");
  }
}

TEST_CASE("collective/DurableFolder: refuses what is of another run, model or version",
          "[collective]") {
  TemporaryFolder const folder;
  TemporaryFolder const other;
  fill(folder);
  fill(other);
  using Catch::Matchers::Contains;
  auto const opened = [&](ServerOptions options) {
    options.durable = folder.path();
    return refusal([&] { return sg::collective::ParameterServer(options); });
  };
  CHECK_THAT(opened({.workers = 2, .run = "today's"}),
             Contains("has the run of a parameter server with the name '', this one has the name "
                      "'today's'; start it with the same options, or name another folder"));
  CHECK_THAT(opened({.workers = 3}), Contains("for 2 workers, this one is made for 3"));
  CHECK_THAT(opened({.workers = 2, .weights = {0.5, 0.25}}), Contains("with other weights"));
  CHECK_THAT(opened({.workers = 2, .on_failure = OnFailure::go_on}),
             Contains("something else when a worker fails"));
  CHECK_THAT(opened({.workers = 2, .average_changes = true}),
             Contains("whose workers sum up their changes"));
  CHECK(opened({.workers = 2, .log = true}) == "accepted");
  auto const joined = [&](std::vector<LayerParameters> const& layers_of_all,
                          WorkerRules const& made) {
    Worker worker;
    return refusal([&] {
      return ServerInProcess({.workers = 2, .durable = folder.path()})
          .join(0, layers_of_all, digests(), made, worker);
    });
  };
  CHECK(joined(model(), rules()) == "accepted");
  CHECK_THAT(joined(model("v"), rules()), Contains("has the parameters 'v: 16 floats"));
  CHECK_THAT(joined(model("w", 5 * length), rules()), Contains("workers train one model"));
  CHECK_THAT(joined(model(), rules(Adds::on_arrival)), Contains("the same staleness model"));
  CHECK_THAT(joined(model(), rules(Adds::in_worker_order, Pushes::changes, {.rate = 0.5})),
             Contains("disagree on the optimizer"));
  {
    sg::collective::ParameterServer const uses({.workers = 2, .durable = folder.path()});
    CHECK_THAT(opened({.workers = 2}), Contains("is used by another parameter server"));
  }
  std::string const path = folder / "layer-000000.stagger";
  std::string const own = contents(path);
  write(path, contents(other / "layer-000000.stagger"));
  CHECK_THAT(opened({.workers = 2}), Contains("is of another run than"));
  write(path, contents(folder / "layer-000001.stagger"));
  CHECK_THAT(opened({.workers = 2}), Contains("is of layer 1"));
  auto later = own;
  later[8] = 8;
  write(path, sealed(later));
  CHECK_THAT(opened({.workers = 2}),
             Contains("has version 8 of the format, this program reads version 7"));
}

TEST_CASE("collective/DurableFolder: keeps the name of the run", "[collective]") {
  TemporaryFolder const folder;
  fill(folder, "yesterday's");
  auto const opened = [&](std::string const& run) {
    return refusal([&] {
      return sg::collective::ParameterServer({.workers = 2, .durable = folder.path(), .run = run});
    });
  };
  CHECK(opened("yesterday's") == "accepted");
  using Catch::Matchers::Contains;
  CHECK_THAT(opened("today's"),
             Contains("with the name 'yesterday's', this one has the name 'today's'"));
  CHECK_THAT(opened(""), Contains("with the name 'yesterday's', this one has the name ''"));
}

TEST_CASE("collective/DurableFolder: where layers may be late, a killed server ends all streams",
          "[collective]") {
  using Model =
      sg::staleness::OverlappedSynchronous<sg::staleness::overlapped::ParameterGradientProduct,
                                           sg::staleness::overlapped::FirstFit,
                                           sg::staleness::overlapped::ShareLate>;
  Model const model{.budget = {0.5}};
  Model const other{.budget = {0.25}};
  auto const late_rules = [](Model const& of) {
    WorkerRules made = rules(Adds::in_worker_order, Pushes::gradients);
    made.late = sg::detail::late_calls_of<Model>;
    made.late_policy = &of;
    made.ahead = 1;
    return made;
  };
  Values gradient;
  gradient.fill(1);
  // The first half of layer 0 is late; both workers have pushed the other half, and maybe worker 0
  // all of it.
  auto const after = [&](bool killed, bool one_has_pushed_all) {
    TemporaryFolder const folder;
    std::array<Values, 2> seen;
    {
      Run run({.workers = 2, .durable = folder.path()}, late_rules(model));
      for (std::size_t n = 0; n < 2; ++n) REQUIRE(run.begin(n));
      for (std::size_t n = 0; n < 2; ++n) run.push_part(n, 0, gradient, {32, 64});
      if (one_has_pushed_all) run.push_part(0, 0, gradient, {0, 32});
      if (!killed) run.end(1, true);
      for (std::size_t n = 0; n < 2; ++n) run.worker(n).running = false;
      if (killed) run.restart();
      for (std::size_t n = 0; n < 2; ++n) REQUIRE(run.begin(n));
      seen[0] = run.newest(0);
      for (std::size_t n = 0; n < 2; ++n) run.push(n, 0, gradient, false);
      seen[1] = run.take(0, 0);
    }
    CHECK_THAT(refusal([&] {
                 Run run({.workers = 2, .durable = folder.path()}, late_rules(other));
                 return 0;
               }),
               Catch::Matchers::Contains("those of the others by '"));
    CHECK_THAT(refusal([&] {
                 Run run({.workers = 2, .durable = folder.path()},
                         rules(Adds::in_worker_order, Pushes::gradients));
                 return 0;
               }),
               Catch::Matchers::Contains("those of the others by '"));
    return seen;
  };
  for (bool const all : {false, true}) {
    auto const seen = after(true, all);
    CHECK(seen == after(false, all));
    CHECK((seen[0][0] != 0) == all);
    CHECK(seen[0][length - 1] != 0);
    CHECK(seen[1] != seen[0]);
  }
}

TEST_CASE("collective/DurableFolder: a failure that not all layers came to is finished",
          "[collective]") {
  for (auto const on_failure : {OnFailure::fail_fast, OnFailure::go_on}) {
    TemporaryFolder const folder;
    ServerOptions const options{.workers = 2, .on_failure = on_failure, .durable = folder.path()};
    std::string before;
    std::vector<std::uint32_t> failures;
    {
      Run run(options, rules());
      REQUIRE((run.begin(0) && run.begin(1)));
      run.push(0, 0, Values{1}, false);
      run.push(0, 1, Values{1}, false);
      before = contents(folder / "layer-000001.stagger");
      failures = {run.worker(0).failures, run.worker(1).failures};
      run.end(1, true);
    }
    write(folder / "layer-000001.stagger", before);  // killed before it was written
    ServerInProcess server(options);
    Worker worker;
    int const client = server.join(0, model(), digests(), rules(), worker);
    // The push of worker 0 was added, and its stream has ended or goes on without the other.
    CHECK((server.resume(client, failures[0]) == nullptr) == (on_failure == OnFailure::go_on));
    std::vector<std::byte> bytes(length * sizeof(float));
    for (std::size_t l = 0; l < 2; ++l) {
      server.read(client, l, bytes.data());
      float first = 0;
      std::memcpy(&first, bytes.data(), sizeof first);
      CHECK(first == 1);
    }
    Worker second;
    int const other = server.join(1, model(), digests(), rules(), second);
    CHECK(server.resume(other, failures[1]) != nullptr);
  }
}

TEST_CASE(
    "collective/DurableFolder: a server that is killed behind a step that it undid tells of it",
    "[collective]") {
  auto const adds = GENERATE(Adds::on_arrival, Adds::in_worker_order);
  auto const on_failure = GENERATE(OnFailure::fail_fast, OnFailure::go_on);
  CAPTURE(static_cast<int>(adds), static_cast<int>(on_failure));
  TemporaryFolder const folder;
  ServerOptions const options{.workers = 2, .on_failure = on_failure, .durable = folder.path()};
  std::string const record = folder / "server.stagger";
  Values large;
  large.fill(3e38F);
  {
    Run run(options, rules(adds));
    REQUIRE((run.begin(0) && run.begin(1)));
    for (std::size_t n = 0; n < 2; ++n) run.worker(n).round = 0;
    run.push(0, 0, large, false);
    // What the server writes of the failure, behind the push, does not reach the disk.
    std::string const before = contents(record);
    files::remove(record);
    files::create_directory(record);
    static_cast<void>(refusal([&] { return run.push(1, 0, large, false), 0; }));
    CHECK(run.worker(1).gave_up);
    files::remove(record);
    write(record, before);
  }
  // Whose push was in the step: the second one, both of the round, or all if no stream goes on.
  std::array const told{on_failure == OnFailure::fail_fast || adds == Adds::in_worker_order, true};
  ServerInProcess server(options);
  std::array<Worker, 2> workers;
  for (std::size_t n = 0; n < 2; ++n) {
    int const client =
        server.join(static_cast<int>(n), model(), digests(), rules(adds), workers[n]);
    CHECK(server.pushes(client, 0) == 1);
    std::exception_ptr const why = server.resume(client, 0);
    REQUIRE((why != nullptr) == told[n]);
    if (told[n])
      CHECK_THAT(refusal([&] { return std::rethrow_exception(why), 0; }),
                 Catch::Contains("a number of layer 0 at the parameter server that is not finite"));
    server.begin(client);
    Values now;
    server.read(client, 0, reinterpret_cast<std::byte*>(now.data()));
    CHECK(now[0] == (adds == Adds::on_arrival ? large[0] : 0));
  }
}

TEST_CASE(
    "collective/DurableFolder: who stays away from a killed server is not waited for, whatever "
    "ends "
    "the streams",
    "[collective]") {
  TemporaryFolder const folder;
  ServerOptions const options{.workers = 3, .durable = folder.path()};
  {
    Run run(options, rules());
    for (std::size_t n = 0; n < 3; ++n) REQUIRE(run.begin(n));
    for (std::size_t n = 0; n < 3; ++n) run.push(n, 0, Values{1}, false);
  }
  ServerInProcess server(options);
  Worker worker;
  int const client = server.join(0, model(), digests(), rules(), worker);
  REQUIRE(server.resume(client, 0) == nullptr);
  server.give_up_awaited();  // workers 1 and 2
  CHECK(worker.gave_up);
  server.begin(client);
  Values const one{1};
  server.push(client, 0, reinterpret_cast<std::byte const*>(one.data()), false, {}, true);
  server.ask(client, 0, {1});
  CHECK(worker.here[0] == 1);
}

TEST_CASE(
    "collective/DurableFolder: who was ahead of others when it failed, and has come back, is not "
    "ahead of them",
    "[collective]") {
  TemporaryFolder const folder;
  Run run({.workers = 2, .on_failure = OnFailure::go_on, .durable = folder.path()},
          rules(Adds::on_arrival));
  REQUIRE((run.begin(0) && run.begin(1)));
  run.worker(0).round = 0;  // it waits for nobody
  for (int push = 0; push < 10; ++push)
    for (std::size_t l = 0; l < layers; ++l) run.push(0, l, Values{1}, false);
  run.end(0, true);
  run.restart();
  REQUIRE(run.begin(0));
  run.restart();
  for (std::uint32_t const asked : {0U, 1U}) {
    run.worker(0).here = {7, 7, 7};
    run.worker(0).round = asked;
    for (std::size_t l = 0; l < layers; ++l) run.push(0, l, Values{1}, false);
    std::uint32_t const there = asked == 0 ? 0 : 7;  // it waits for the first push of the other
    CHECK(run.worker(0).here == std::array{there, there, there});
  }
  for (std::size_t l = 0; l < layers; ++l) run.push(1, l, Values{1}, false);
  CHECK(run.worker(0).here == std::array{1U, 1U, 1U});
}

TEST_CASE(
    "collective/DurableFolder: who had left between two streams while there was no server is "
    "not waited for",
    "[collective]") {
  for (auto const on_failure : {OnFailure::fail_fast, OnFailure::go_on}) {
    TemporaryFolder const folder;
    ServerOptions const options{.workers = 3, .on_failure = on_failure, .durable = folder.path()};
    {
      Run run(options, rules());
      for (std::size_t n = 0; n < 3; ++n) REQUIRE(run.begin(n));
      for (std::size_t n = 0; n < 3; ++n) run.end(n, false);
    }
    ServerInProcess server(options);
    Worker worker;
    int const client = server.join(0, model(), digests(), rules(), worker);
    REQUIRE(server.awaits_any());
    server.give_up_awaited();
    CHECK_FALSE(worker.gave_up);
    CHECK_FALSE(server.awaits_any());
    CHECK(server.layers().failures(0) == 0);
    Worker last;
    int const other = server.join(2, model(), digests(), rules(), last);
    server.begin(other);
    server.begin(client);
    Values const one{1};
    for (int const each : {client, other})
      server.push(each, 0, reinterpret_cast<std::byte const*>(one.data()), false, {}, true);
    server.ask(client, 0, {1});
    CHECK(worker.here[0] == 1);  // without worker 1
  }
}

TEST_CASE("collective/DurableFolder: nobody receives what a disk that is full has refused",
          "[collective]") {
  auto const adds = GENERATE(Adds::on_arrival, Adds::in_worker_order, Adds::in_turn);
  auto const on_failure = GENERATE(OnFailure::fail_fast, OnFailure::go_on);
  CAPTURE(static_cast<int>(adds), static_cast<int>(on_failure));
  TemporaryFolder const folder;
  ServerOptions const options{.workers = 2, .on_failure = on_failure, .durable = folder.path()};
  {
    Run run(options, rules(adds));
    REQUIRE((run.begin(0) && run.begin(1)));
    for (std::size_t n = 0; n < 2; ++n)
      for (std::size_t l = 0; l < layers; ++l) run.push(n, l, Values{1}, false);
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    auto const handler = std::signal(SIGXFSZ, SIG_IGN);  // the limit stands in for a full disk
    rlimit const small{64, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    auto const full = Catch::Contains("keeps nothing any more");
    std::string const pushed = refusal([&] { return run.push(0, 0, Values{1}, false), 0; });
    // The other worker has asked for weights that were ready before, and wants the newest.
    std::string const taken = refusal([&] { return run.take(1, 0); });
    run.end(0, true);
    run.end(1, true);
    std::string const read = refusal([&] { return run.newest(0); });
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    CHECK_THAT(pushed, full);
    CHECK_THAT(taken, full);
    CHECK_THAT(read, full);
    CHECK_THAT(refusal([&] { return run.newest(0); }), full);  // with room again, too
  }
  Run again(options, rules(adds));
  // Each worker's first push; in turn, worker 0 sees none of the other.
  CHECK(again.newest(0)[0] == (adds == Adds::in_turn ? 1 : 2));
}

TEST_CASE(
    "collective/DurableFolder: a process that is killed while it writes loses no push that it "
    "has told of",
    "[collective]") {
  std::mt19937 random(7);
  TemporaryFolder const folder;
  std::uint32_t least = 0;
  for (int round = 0; round < (sanitized ? 5 : 20); ++round) {
    int told[2];
    REQUIRE(::pipe(told) == 0);
    auto const child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      try {
        Run run({.workers = 1, .durable = folder.path()}, rules());
        run.begin(0);
        for (std::uint32_t made = 1;; ++made)
          for (std::size_t l = 0; l < layers; ++l) {
            run.push(0, l, Values{1}, false);
            if (l + 1 == layers && ::write(told[1], &made, sizeof made) < 0) ::_exit(2);
          }
      } catch (...) {
        ::_exit(1);
      }
    }
    ::close(told[1]);
    std::uint32_t pushes = 0;  // in this life of the server
    for (auto left = 1 + random() % 10; left > 0; --left)
      REQUIRE(::read(told[0], &pushes, sizeof pushes) == sizeof pushes);
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    REQUIRE(WIFSIGNALED(status));
    for (std::uint32_t more = 0; ::read(told[0], &more, sizeof more) == sizeof more;) pushes = more;
    ::close(told[0]);
    least += pushes;
    ServerInProcess server({.workers = 1, .durable = folder.path()});
    Worker worker;
    int const client = server.join(0, model(), digests(), rules(), worker);
    std::vector<std::byte> bytes(length * sizeof(float));
    std::uint32_t fewest = 0xffffffff;
    for (std::size_t l = 0; l + 1 < layers; ++l) {
      std::uint32_t const there = server.pushes(client, l);
      CHECK(there >= least);
      fewest = std::min(fewest, there);
      server.read(client, l, bytes.data());
      float sum = 0;
      std::memcpy(&sum, bytes.data(), sizeof sum);
      CHECK(sum == static_cast<float>(there));  // each was added once
    }
    for (auto const& name : folder.names()) CHECK(name.front() != '.');
    least = fewest;
  }
}

}  // namespace durable_folder_test
