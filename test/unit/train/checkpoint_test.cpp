// SPDX-License-Identifier: Apache-2.0
#include <stagger/train/checkpoint.hpp>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <tuple>

#include <sys/resource.h>
#include <sys/wait.h>

#include <stagger/train/pipeline.hpp>

#include "catch.hpp"

#include "../temporary_folder.hpp"

namespace checkpoint_test {

using stagger::Checkpoints;
using stagger::CheckpointState;
using stagger::ParameterState;

namespace {

/// Parameters with memory of their own: a float, a double, and one without optimizer state.
class Model {
 public:
  explicit Model(unsigned seed, std::size_t size = 3) {
    std::mt19937 random(seed);
    add("0.weight", stagger::ElementType::f32, size * 4, 2, random);
    add("0.bias", stagger::ElementType::f64, 8, 2, random);
    add("1.weight", stagger::ElementType::f32, 4, 0, random);
  }
  std::vector<ParameterState> parameters;

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all;
    for (auto const& memory : memory_) all.insert(all.end(), memory.begin(), memory.end());
    return all;
  }

 private:
  void add(std::string name, stagger::ElementType type, std::size_t bytes, std::size_t states,
           std::mt19937& random) {
    ParameterState parameter;
    parameter.name = std::move(name);
    parameter.type = type;
    auto const block = [&] {
      auto& memory = memory_.emplace_back(bytes);
      for (auto& byte : memory) byte = static_cast<std::byte>(random());
      return std::span(memory);
    };
    parameter.value = block();
    for (std::size_t s = 0; s < states; ++s) parameter.state[s] = block();
    parameters.push_back(std::move(parameter));
  }
  std::vector<std::vector<std::byte>>
      memory_;  // moving a vector leaves its elements where they are
};

std::vector<char> read(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(std::string const& path, std::vector<char> const& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

/// What an Error says; "accepted" where none was thrown.
template <class F> std::string refusal(F const& f) {
  try {
    (void)f();
  } catch (stagger::Error const& error) {
    return error.what();
  }
  return "accepted";
}

CheckpointState state(std::int64_t step) { return {step, 7, "a model", "its settings"}; }

/// The checksum, written from the description of the format.
void seal(std::vector<char>& bytes) {
  std::uint64_t h = 0x9e3779b97f4a7c15U;
  for (std::size_t i = 0; i + 8 < bytes.size(); i += 8) {
    std::uint64_t word = 0;
    for (std::size_t b = 8; b-- != 0;) word = word << 8U | static_cast<unsigned char>(bytes[i + b]);
    h = (h ^ word) * 0xff51afd7ed558ccdU;
    h ^= h >> 32U;
  }
  for (std::size_t b = 0; b < 8; ++b) bytes[bytes.size() - 8 + b] = static_cast<char>(h >> (8 * b));
}

}  // namespace

TEST_CASE("train/checkpoint: what is written comes back bit by bit", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path() + "/new/folders");
  Model const written(1);
  checkpoints.write(state(12), written.parameters);
  Model read_back(2);
  REQUIRE(read_back.bytes() != written.bytes());
  auto const restored = checkpoints.restore("a model", read_back.parameters);
  CHECK(read_back.bytes() == written.bytes());
  CHECK(restored.state.step == 12);
  CHECK(restored.state.seed == 7);
  CHECK(restored.state.settings == "its settings");
  CHECK(restored.warnings.empty());
  CHECK(restored.file == folder.path() + "/new/folders/step-000000012.stagger");
}

TEST_CASE("train/checkpoint: arrays larger than the write buffer come back", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  Model const written(1, 300001);
  checkpoints.write(state(1), written.parameters);
  Model read_back(2, 300001);
  (void)checkpoints.restore("a model", read_back.parameters);
  CHECK(read_back.bytes() == written.bytes());
}

TEST_CASE("train/checkpoint: the head of a file counts bytes beyond 32 bits", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  constexpr std::uint64_t large = std::uint64_t{5} << 30U;
  {
    stagger::detail::CheckedWriter out(checkpoints.path(1));
    stagger::detail::write_head(out, {.step = 1, .seed = 0, .model = "m", .settings = ""}, {},
                                {{"w", stagger::ElementType::f32, large, 2}});
    out.commit();
  }
  auto const bytes = read(checkpoints.path(1));
  std::uint64_t size = 0;
  REQUIRE(bytes.size() > 24);
  std::memcpy(&size, bytes.data() + 16, sizeof size);
  CHECK(size == 72 + 8 + 40 + 8 + 3 * large + 8);
  std::vector<ParameterState> none;
  CHECK_THAT(refusal([&] { return checkpoints.restore("m", none); }),
             Catch::Contains(" bytes instead of 16106127496; no other checkpoint in "));
}

TEST_CASE("train/checkpoint: every flipped bit is noticed and changes nothing", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  checkpoints.write(state(12), Model(1).parameters);
  auto const good = read(checkpoints.path(12));
  Model model(2);
  auto const before = model.bytes();
  for (std::size_t i = 0; i < good.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      auto bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      write(checkpoints.path(12), bad);
      INFO("bit " << bit << " of byte " << i << " of " << good.size());
      try {
        (void)checkpoints.restore("a model", model.parameters);
        FAIL_CHECK("accepted");
      } catch (stagger::Error const& error) {
        if (error.code() != stagger::Errc::bad_data) FAIL_CHECK(error.what());
      }
    }
  CHECK(model.bytes() == before);
}

TEST_CASE("train/checkpoint: every truncation and every appended byte is noticed", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  checkpoints.write(state(12), Model(1).parameters);
  auto const good = read(checkpoints.path(12));
  Model model(2);
  auto const before = model.bytes();
  for (std::size_t size = 0; size <= good.size() + 16; ++size) {
    if (size == good.size()) continue;
    auto bad = good;
    bad.resize(size);
    write(checkpoints.path(12), bad);
    std::string const text =
        refusal([&] { return checkpoints.restore("a model", model.parameters); });
    INFO(text);
    CHECK(contains(text, checkpoints.path(12) + " is damaged"));
  }
  CHECK(model.bytes() == before);
}

TEST_CASE("train/checkpoint: numbers that lie under a right checksum are refused, not followed",
          "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  checkpoints.write(state(12), Model(1).parameters);
  auto const good = read(checkpoints.path(12));
  Model model(2);
  std::mt19937 random(3);
  int accepted = 0;
  for (std::size_t i = 0; i + 8 < good.size(); ++i)
    for (int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      auto bad = good;
      bad[i] = static_cast<char>(value);
      if (random() % 2 == 0 && i + 16 < good.size())
        for (std::size_t b = 1; b < 8; ++b) bad[i + b] = static_cast<char>(value);
      seal(bad);
      write(checkpoints.path(12), bad);
      try {  // contents may change, as no one can tell; addresses and sizes may not (the sanitizers
             // watch)
        (void)checkpoints.restore("a model", model.parameters);
        ++accepted;
      } catch (stagger::Error const&) {
      }
    }
  auto sealed = good;
  seal(sealed);
  CHECK(sealed == good);  // the test reads the format as the code writes it
  CHECK(accepted > 100);  // values and states are free
}

TEST_CASE("train/checkpoint: a damaged newest file gives way to the one before, with a warning",
          "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  Model const first(1);
  checkpoints.write(state(10), first.parameters);
  checkpoints.write(state(20), Model(2).parameters);
  auto bytes = read(checkpoints.path(20));
  bytes.resize(bytes.size() / 2);
  write(checkpoints.path(20), bytes);
  Model model(3);
  auto const restored = checkpoints.restore("a model", model.parameters);
  CHECK(restored.state.step == 10);
  CHECK(model.bytes() == first.bytes());
  REQUIRE(restored.warnings.size() == 1);
  INFO(restored.warnings[0]);
  CHECK(contains(restored.warnings[0], checkpoints.path(20) + " is damaged"));
}

TEST_CASE("train/checkpoint: the last two are kept, steps that were abandoned go", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  Model const model(1);
  write(folder.path() + "/notes.txt", {'x'});
  for (std::int64_t step : {1, 2, 3, 999999999, 1000000000})
    checkpoints.write(state(step), model.parameters);
  CHECK(checkpoints.steps() == std::vector<std::int64_t>{1000000000, 999999999});
  write(checkpoints.path(1000000000), {'b', 'a', 'd'});
  write(folder.path() + "/.step-000000005.stagger.17-0.tmp",
        {'x'});  // of a process that was killed
  checkpoints.write(state(999999999 + 5), model.parameters);
  CHECK(checkpoints.steps() == std::vector<std::int64_t>{1000000004, 1000000000});
  checkpoints.write(state(999999999), model.parameters);
  CHECK(folder.names() == std::vector<std::string>{"notes.txt", "step-999999999.stagger"});
}

TEST_CASE(
    "train/checkpoint: a step that cannot be counted on from is refused, and removes no other",
    "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  Model model(1);
  checkpoints.write(state(7), model.parameters);
  for (std::int64_t const step : {std::int64_t{-5}, (std::int64_t{1} << 48U) + 1, INT64_MAX})
    CHECK_THROWS_WITH(checkpoints.write(state(step), model.parameters),
                      "a checkpoint cannot be of step " + std::to_string(step) +
                          "; count the steps from 0 to 281474976710656");
  CHECK(checkpoints.steps() == std::vector<std::int64_t>{7});
  auto bytes = read(checkpoints.path(7));
  for (std::size_t b = 24; b < 32; ++b) bytes[b] = b == 31 ? '\x7f' : '\xff';  // the step
  seal(bytes);
  write(checkpoints.path(7), bytes);
  CHECK_THROWS_WITH(checkpoints.restore("a model", model.parameters),
                    Catch::Contains("is damaged: it is of step 9223372036854775807"));
  checkpoints.write(state(std::int64_t{1} << 48U), model.parameters);
  CHECK(checkpoints.restore("a model", model.parameters).state.step == std::int64_t{1} << 48U);
}

TEST_CASE("train/checkpoint: a program that writes keeps its temporary file beside another one",
          "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  Model const model(1);
  checkpoints.write(state(1), model.parameters);
  std::string const whole(read(checkpoints.path(1)).data(), read(checkpoints.path(1)).size());
  stagger::WholeFile living(checkpoints.path(5));  // locked as by another process
  living.write(whole.substr(0, whole.size() / 2));
  write(folder.path() + "/.step-000000005.stagger.17-0.tmp", {'x'});  // of a killed process
  checkpoints.write(state(2), model.parameters);
  CHECK(folder.names().size() == 3);  // two checkpoints, and what the other one writes
  living.write(whole.substr(whole.size() / 2));
  living.commit();
  Model back(2);
  CHECK(checkpoints.restore("a model", back.parameters).file == checkpoints.path(5));
  CHECK(back.bytes() == model.bytes());
  checkpoints.write(state(6), model.parameters);
  CHECK(folder.names() ==
        std::vector<std::string>{"step-000000005.stagger", "step-000000006.stagger"});
}

TEST_CASE("train/checkpoint: what cannot be read is said with the remedy", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  Model model(1);
  checkpoints.write(state(1), model.parameters);
  std::filesystem::create_symlink("nowhere", checkpoints.path(3));
  std::filesystem::create_directory(checkpoints.path(2));
  auto const restored = checkpoints.restore("a model", model.parameters);
  CHECK(restored.state.step == 1);
  CHECK(restored.warnings ==
        std::vector<std::string>{
            "cannot read " + checkpoints.path(3) +
                ": No such file or directory; it is a link to nothing: create what it leads to, or "
                "name another file",
            "cannot read " + checkpoints.path(2) +
                ": Is a directory; give the name of a file that exists"});
  std::string const removed = folder.path() + "/removed";
  Checkpoints const gone(removed);
  std::filesystem::remove(removed);
  CHECK_THROWS_WITH(gone.restore("a model", model.parameters),
                    "cannot read " + removed +
                        ": No such file or directory; give the name of a folder that exists");
  CHECK_THROWS_WITH(gone.write(state(1), model.parameters),
                    Catch::Contains("create the folder first"));
}

TEST_CASE("train/checkpoint: another model is refused with the first difference", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  checkpoints.write(state(1), Model(1).parameters);
  auto const refused = [&](std::string const& model, std::vector<ParameterState> const& parameters,
                           std::string const& difference) {
    try {
      (void)checkpoints.restore(model, parameters);
      FAIL_CHECK("accepted, expected: " << difference);
    } catch (stagger::Error const& error) {
      CHECK(error.code() == stagger::Errc::mismatch);
      INFO(error.what());
      CHECK(contains(error.what(), difference));
    }
  };
  Model model(2);
  auto const before = model.bytes();
  refused("another", model.parameters, "it is of 'a model', this is 'another'");
  auto parameters = model.parameters;
  parameters[1].name = "0.other";
  refused("a model", parameters, "parameter 1 is '0.bias' there, here '0.other'");
  parameters = model.parameters;
  parameters[1].type = stagger::ElementType::f32;
  refused("a model", parameters, "'0.bias' has another element type");
  parameters = model.parameters;
  parameters[2].state[0] = parameters[2].value;
  refused("a model", parameters, "the optimizer's state of '1.weight' has 0 bytes there, here 4");
  parameters.pop_back();
  refused("a model", parameters, "it has 3 parameters, this model has 2");
  refused("a model", Model(1, 4).parameters, "parameter '0.weight' has 12 bytes there, here 16");
  CHECK(model.bytes() == before);
}

TEST_CASE("train/checkpoint: a folder that cannot be used is named at once", "[train]") {
  TemporaryFolder const folder;
  write(folder.path() + "/file", {'x'});
  for (std::string const& name :
       {folder.path() + "/file", folder.path() + "/file/below", std::string("/proc/nothing")}) {
    std::string const text = refusal([&] { return Checkpoints(name); });
    INFO(text);
    CHECK(contains(text, name));
    CHECK(contains(text, "another folder"));
  }
  CHECK(contains(refusal([] { return Checkpoints(""); }), "name one"));
  CHECK(contains(refusal([&] { return Checkpoints(folder.path()).restore("", {}); }),
                 "holds no checkpoint"));
}

TEST_CASE("train/checkpoint: a file that stands in the folder, or a link, is not written to",
          "[train]") {
  TemporaryFolder const folder;
  TemporaryFolder const elsewhere;
  std::string const victim = elsewhere.path() + "/victim";
  std::ofstream(victim) << "precious";
  std::string const name = ".stagger-probe-" + std::to_string(::getpid());
  std::vector<std::string> const probes{name, name + "-0", name + "-1"};
  for (auto const& probe : probes)
    std::filesystem::create_symlink(victim, folder.path() + "/" + probe);
  std::ofstream(folder.path() + "/" + name + "-2") << "of another host";
  Checkpoints const checkpoints(folder.path());
  std::string contents;
  std::ifstream(victim) >> contents;
  CHECK(contents == "precious");
  CHECK(folder.names() == std::vector<std::string>{name, name + "-0", name + "-1", name + "-2"});
  CHECK(std::filesystem::file_size(folder.path() + "/" + name + "-2") == 15);
}

TEST_CASE("train/checkpoint: a write that fails leaves what was there", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  Model const model(1, 100000);
  checkpoints.write(state(1), model.parameters);
  ::rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  auto const handler = std::signal(SIGXFSZ, SIG_IGN);
  ::rlimit const small{300000, before.rlim_max};  // in the middle of the file
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string const text = refusal([&] {
    checkpoints.write(state(2), Model(2, 100000).parameters);
    return 0;
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  INFO(text);
  CHECK(contains(text, "cannot write '" + checkpoints.path(2) + "': File too large"));
  CHECK(folder.names() == std::vector<std::string>{"step-000000001.stagger"});
  Model back(3, 100000);
  CHECK(checkpoints.restore("a model", back.parameters).state.step == 1);
  CHECK(back.bytes() == model.bytes());
}

TEST_CASE(
    "train/checkpoint: kill -9 at any moment leaves a whole checkpoint, none older than was "
    "promised",
    "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  std::mt19937 random(1);
  std::int64_t step = 1;
  checkpoints.write(state(1), Model(1, 20000).parameters);
  for (int round = 0; round < 25; ++round) {
    int promised[2];
    REQUIRE(::pipe(promised) == 0);
    ::pid_t const child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      for (std::int64_t next = step + 1;; ++next) {
        checkpoints.write(state(next), Model(static_cast<unsigned>(next), 20000).parameters);
        if (::write(promised[1], &next, sizeof next) < 0) ::_exit(1);
      }
    }
    ::close(promised[1]);
    if (round % 5 == 0) (void)!::read(promised[0], &step, sizeof step);  // let at least one succeed
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    while (::read(promised[0], &step, sizeof step) == sizeof step) {
    }
    ::close(promised[0]);
    Model model(0, 20000);
    auto const restored = checkpoints.restore("a model", model.parameters);
    CHECK(restored.warnings.empty());
    CHECK(restored.state.step >= step);
    CHECK(model.bytes() == Model(static_cast<unsigned>(restored.state.step), 20000).bytes());
    step = restored.state.step;
  }
  CHECK(step > 5);
}

namespace {

/// y = a x, with two parameters that both count.
struct Scale {
  using Input = float;
  using Output = float;
  stagger::Parameter<> a{"a", {1.5F, 0.25F}};
  auto parameters() { return std::tie(a); }
  void forward(stagger::Context& context, float const& x, float& y, stagger::NothingSaved&) {
    y = context[a][0] * x + context[a][1];
  }
  void backward(stagger::Context& context, float const& x, float const& dy, float& dx,
                stagger::NothingSaved&) {
    dx = context[a][0] * dy;
    context.gradient(a)[0] += dy * x;
    context.gradient(a)[1] += dy;
  }
};
struct Square {
  using policy_tag = stagger::LossTag;
  using Target = float;
  double terms(float) const { return 1; }
  double value(stagger::Context&, float y, float target) const {
    return (y - target) * (y - target);
  }
  double value_and_gradient(stagger::Context& context, float y, float target, double scale,
                            float& dy) const {
    dy = static_cast<float>(2 * scale) * (y - target);
    return value(context, y, target);
  }
};

/// Optimizers with as many states as AdamW, and numbers of several types.
struct Own {
  using policy_tag = stagger::OptimizerTag;
  static constexpr int states = 2;
  static constexpr bool element_wise = true;
  double rate = 0.1;
  float decay = 0.5F;
  int warm_up = -3;
  bool plain = false;
  auto fields() const { return std::tie(rate, decay, warm_up, plain); }
  template <class T>
  void update(stagger::OptimizerView<T> const& v, double scale, std::int64_t step) const noexcept {
    for (std::size_t i = 0; i < v.size; ++i) {
      v.state[0][i] = static_cast<T>(decay) * v.state[0][i] + v.gradient[i] * static_cast<T>(scale);
      v.state[1][i] += static_cast<T>(plain ? 1 : step);
      v.next[i] = v.value[i] - static_cast<T>(rate / (10 + warm_up)) * v.state[0][i];
    }
  }
};
struct Copies : Own {
  auto fields() const { return std::make_tuple(rate, decay, warm_up, plain); }
};
struct Renamed : stagger::optimizer::AdamW {
  static constexpr std::string_view name = "Renamed";
};

template <class O> auto trainer(O optimizer) {
  return stagger::Pipeline{Scale{}, Scale{}}.with(Square{}, optimizer, stagger::host::Threads{2});
}
stagger::Batch<float, float> const data{{1, 2}, {5, 10}};

template <class Train> std::vector<std::byte> bits(Train& train) {
  std::vector<std::byte> all;
  for (auto const& parameter : train.parameters())
    for (auto const& block : stagger::detail::blocks_of(parameter))
      all.insert(all.end(), block.begin(), block.end());
  return all;
}
/// Takes three steps, the numbers of each by `schedule(optimizer, step)`.
template <class Train, class Schedule> void advance(Train& train, Schedule const& schedule) {
  for (int s = 0; s < 3; ++s) {
    schedule(train.optimizer(), train.steps());
    stagger::run(train.step(data));
  }
}

}  // namespace

TEST_CASE("train/Checkpoints: a restored trainer goes on to the bit, with step and numbers",
          "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  auto const check = [&](auto optimizer, auto const& schedule, auto const& number) {
    auto whole = trainer(optimizer);
    advance(whole, schedule);
    checkpoints.write(state(whole.steps()), whole);
    auto resumed = trainer(optimizer);
    auto const found = checkpoints.restore("a model", resumed);
    CHECK(found.warnings.empty());
    CHECK(resumed.steps() == 3);
    CHECK(number(resumed.optimizer()) == number(whole.optimizer()));
    CHECK(number(resumed.optimizer()) != number(optimizer));
    CHECK(bits(resumed) == bits(whole));
    stagger::run(whole.step(data));  // with the numbers of the last step
    stagger::run(resumed.step(data));
    CHECK(bits(resumed) == bits(whole));
    advance(whole, schedule);
    advance(resumed, schedule);
    CHECK(bits(resumed) == bits(whole));
    CHECK(resumed.steps() == 7);
  };
  auto const falls = [](auto& optimizer, std::int64_t step) {
    optimizer.rate = 0.002 / (1.0 + static_cast<double>(step));
  };
  auto const rate = [](auto const& optimizer) { return optimizer.rate; };
  check(stagger::optimizer::AdamW{.rate = 0.1}, falls, rate);
  check(stagger::optimizer::Sgd{.rate = 0.1, .momentum = 0.9}, falls, rate);
  check(Own{}, falls, rate);
  check(
      Own{.rate = 0.02},
      [](Own& own, std::int64_t step) {
        own.decay = 0.25F;
        own.warm_up = static_cast<int>(step % 4) - 2;
        own.plain = step > 0;
      },
      [](Own const& own) { return std::tuple(own.decay, own.warm_up, own.plain); });
  // A program whose schedule begins elsewhere: what changed in the run is not compared.
  auto changed = trainer(Own{});
  changed.optimizer().rate = 0.03;
  checkpoints.write(state(changed.steps()), changed);
  auto later = trainer(Own{.rate = 0.05});
  CHECK_NOTHROW(checkpoints.restore("a model", later));
  CHECK(later.optimizer().rate == 0.03);
}

TEST_CASE("train/Checkpoints: another optimizer is refused in one sentence, unless it is meant",
          "[train]") {
  using stagger::Restore;
  using stagger::optimizer::AdamW;
  using stagger::optimizer::Sgd;
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  auto const remedy =
      "; give it that one, or say what is meant: Restore::other_optimizer goes on with this one "
      "and that one's state, Restore::values takes the values alone, as for predictions";
  auto const refused = [&](auto written, auto other, std::string const& there,
                           std::string const& here) {
    auto train = trainer(written);
    advance(train, [](auto& optimizer, std::int64_t) { optimizer.rate = 0.01; });
    checkpoints.write(state(3), train);
    auto reads = trainer(other);
    stagger::run(reads.step(data));
    auto const before = bits(reads);
    auto const text = refusal([&] { return checkpoints.restore("a model", reads); });
    CHECK_THAT(text, Catch::StartsWith("the checkpoint " + checkpoints.path(3) +
                                       " was written with the optimizer " + there) &&
                         Catch::Contains(", and this pipeline has " + here) &&
                         Catch::EndsWith(remedy));
    CHECK(bits(reads) == before);
    CHECK(reads.steps() == 1);
    CHECK(reads.optimizer().rate == other.rate);

    CHECK_NOTHROW(checkpoints.restore("a model", reads, Restore::other_optimizer));
    CHECK(bits(reads) == bits(train));
    CHECK(reads.steps() == 3);
    CHECK(reads.optimizer().rate == other.rate);

    CHECK_NOTHROW(checkpoints.restore("a model", reads, Restore::values));
    CHECK(reads.steps() == 0);
    auto const values = reads.parameters();
    for (std::size_t p = 0; p < values.size(); ++p) {
      CHECK(values[p].template values<float>()[1] ==
            train.parameters()[p].template values<float>()[1]);
      for (auto const& block : values[p].state)
        for (std::byte const byte : block) CHECK(byte == std::byte{0});
    }
  };
  refused(AdamW{}, Own{}, "AdamW(0.001, 0.9, 0.999, 1e-08, 0.01)", "checkpoint_test::");
  refused(Own{}, AdamW{}, "checkpoint_test::", "AdamW(0.001, 0.9, 0.999, 1e-08, 0.01)");
  refused(AdamW{}, AdamW{.beta1 = 0.5}, "AdamW(0.001, 0.9, ", "AdamW(0.001, 0.5, ");
  refused(AdamW{}, Renamed{}, "AdamW(", "Renamed(");
  refused(Sgd{.momentum = 0.9}, Sgd{}, "Sgd(0.01, 0.9, 0)", "Sgd(0.01, 0, 0)");
  refused(Sgd{.rate = 0.01}, Sgd{.rate = 0.02}, "Sgd(0.01, 0, 0)", "Sgd(0.02, 0, 0)");
  refused(Own{.rate = 0.01}, Own{.rate = 0.01, .warm_up = 4}, "checkpoint_test::", "checkpoint");
  // With another number of states.
  auto adam = trainer(AdamW{});
  auto sgd = trainer(Sgd{});
  checkpoints.write(state(0), adam);
  for (Restore const what : {Restore::everything, Restore::other_optimizer}) {
    auto const text = refusal([&] { return checkpoints.restore("a model", sgd, what); });
    CHECK_THAT(text, Catch::Contains("AdamW(0.001") && Catch::Contains("Restore::values"));
  }
  CHECK_THROWS_WITH(checkpoints.restore("a model", sgd, Restore::other_optimizer),
                    Catch::Contains("the optimizer's state of '0.a' has 8 bytes there, here 0"));
}

namespace {

/// Says when its numbers are read and when it updates, in the thread that does so.
struct Watched : Own {
  struct Watch {
    std::function<void()> read = [] {}, update = [] {};
  };
  Watch* watch = nullptr;
  auto fields() const {
    watch->read();
    return Own::fields();
  }
  template <class T>
  void update(stagger::OptimizerView<T> const& v, double scale, std::int64_t step) const noexcept {
    watch->update();
    Own::update(v, scale, step);
  }
};

}  // namespace

TEST_CASE("train/Checkpoints: a checkpoint is of the step that its trainer has taken", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  auto train = trainer(stagger::optimizer::AdamW{});
  for (int s = 0; s < 2; ++s) stagger::run(train.step(data));
  for (std::int64_t const other : {0, 1, 3})
    CHECK(refusal([&] { return checkpoints.write(state(other), train), 0; }) ==
          "the checkpoint is said to be of step " + std::to_string(other) +
              ", where the trainer has taken 2 steps; give CheckpointState::step what "
              "Trainer::steps says, with which it goes on");
  // Another thread takes a step before the parameters are read.
  Watched::Watch watch;
  auto watched = stagger::Pipeline{Scale{}}.with(Square{}, Watched{{}, &watch});
  bool taken = false;
  watch.read = [&] {
    if (!std::exchange(taken, true)) stagger::run(watched.step(data));
  };
  CHECK_THAT(refusal([&] { return checkpoints.write(state(0), watched), 0; }),
             Catch::Contains("to be of step 0, where the trainer has taken 1 step; "));
  CHECK(checkpoints.steps().empty());
  checkpoints.write(state(2), train);
  CHECK(checkpoints.steps() == std::vector<std::int64_t>{2});
}

TEST_CASE("train/Checkpoints: a pipeline that only predicts takes the values alone", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  auto train = trainer(stagger::optimizer::AdamW{.rate = 0.1});
  for (int s = 0; s < 3; ++s) stagger::run(train.step(data));
  checkpoints.write(state(3), train);
  auto predicts = stagger::Pipeline{Scale{}, Scale{}}.with(stagger::host::Threads{1});
  CHECK_THROWS_WITH(checkpoints.restore("a model", predicts),
                    Catch::Contains("as for predictions"));
  CHECK_THROWS_WITH(checkpoints.restore("a model", predicts.parameters()),
                    Catch::Contains("as for predictions: Restore::values"));
  auto const found = checkpoints.restore("a model", predicts, stagger::Restore::values);
  CHECK(found.state.step == 3);
  std::vector<float> expected(2);
  std::vector<float> outputs(2);
  stagger::run(train.predict(data.inputs, expected));
  stagger::run(predicts.predict(data.inputs, outputs));
  CHECK(outputs == expected);
}

TEST_CASE("train/Checkpoints: numbers that cannot be set are refused before anything changes",
          "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  auto train = trainer(Copies{});
  train.optimizer().rate = 0.2;
  stagger::run(train.step(data));
  checkpoints.write(state(1), train);
  auto reads = trainer(Copies{});
  auto const before = bits(reads);
  CHECK_THROWS_WITH(checkpoints.restore("a model", reads),
                    Catch::Contains("let its fields() return std::tie of members"));
  CHECK(bits(reads) == before);
  CHECK(reads.steps() == 0);
  reads.optimizer().rate = 0.2;  // nothing to set
  CHECK_NOTHROW(checkpoints.restore("a model", reads));
  CHECK(bits(reads) == bits(train));
}

TEST_CASE(
    "train/Checkpoints: a trainer that is restored refuses another thread's steps, and the "
    "other way round",
    "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  Watched::Watch watch;
  auto const make = [&] {
    return stagger::Pipeline{Scale{}}.with(Square{}, Watched{{}, &watch},
                                           stagger::host::Threads{1});
  };
  auto written = make();
  advance(written, [](Watched&, std::int64_t) {});
  checkpoints.write(state(3), written);
  auto const expected = bits(written);

  auto train = make();
  std::vector<std::string> says;
  auto const elsewhere = [&](auto const& call) {
    std::thread([&] { says.push_back(refusal(call)); }).join();
  };
  // The numbers are read before the file is, and compared and set before its parameters are read.
  watch.read = [&] {
    elsewhere([&] { return stagger::run(train.step(data)); });
    elsewhere([&] { return train.steps() == 0 ? train.optimizer().rate : 0; });
  };
  CHECK(checkpoints.restore("a model", train).state.step == 3);
  CHECK(says.size() >= 8);
  for (auto const& text : says)
    CHECK_THAT(text, Catch::StartsWith("another call of this pipeline has not returned yet; "));
  watch.read = [] {};
  CHECK(train.steps() == 3);
  CHECK(bits(train) == expected);

  says.clear();
  watch.update = [&] { elsewhere([&] { return checkpoints.restore("a model", train); }); };
  stagger::run(train.step(data));
  REQUIRE(says.size() == 1);  // of one parameter
  CHECK_THAT(says[0], Catch::StartsWith("a step of this pipeline is still running; "));
  watch.update = [] {};
  stagger::run(written.step(data));
  CHECK(bits(train) == bits(written));

  // What the reader throws leaves the trainer free, and at the step before.
  CHECK_THROWS_WITH(train.restore_parameters([](auto const&, auto const&, auto&) -> std::int64_t {
    throw std::runtime_error("no more");
  }),
                    "no more");
  stagger::run(train.step(data));
  CHECK(train.steps() == 5);
}

namespace {

/// Numbers of two types and no `fields()`: nobody knows them.
struct Mixed {
  using policy_tag = stagger::OptimizerTag;
  static constexpr int states = 0;
  static constexpr bool element_wise = true;
  double rate = 0.5;
  int warm_up = 3;
  template <class T>
  void update(stagger::OptimizerView<T> const& view, double scale, std::int64_t) const noexcept {
    for (std::size_t i = 0; i < view.size; ++i)
      view.next[i] = view.value[i] - static_cast<T>(rate * scale) * view.gradient[i];
  }
};

}  // namespace

TEST_CASE("train/Checkpoints: an optimizer whose numbers are not known is restored with a warning",
          "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  auto train = trainer(Mixed{});
  train.optimizer().rate = 0.01;
  stagger::run(train.step(data));
  checkpoints.write(state(1), train);
  auto reads = trainer(Mixed{.rate = 0.25, .warm_up = 7});
  auto const found = checkpoints.restore("a model", reads);
  REQUIRE(found.warnings.size() == 1);
  CHECK_THAT(found.warnings[0],
             Catch::Contains("does not tell its numbers, so that none of " + checkpoints.path(1)) &&
                 Catch::EndsWith("let its fields() return std::tie of them"));
  CHECK(bits(reads) == bits(train));
  CHECK(reads.optimizer().rate == 0.25);
  using stagger::Restore;
  for (Restore const what : {Restore::other_optimizer, Restore::values})
    CHECK(checkpoints.restore("a model", reads, what).warnings.empty());
}

namespace {

/// What an older version of the format would have written, from the descriptions of both.
std::vector<char> as_version(char version, std::vector<char> bytes) {
  auto const number = [&](std::size_t at) {
    std::uint64_t value = 0;
    for (std::size_t b = 8; b-- != 0;)
      value = value << 8U | static_cast<unsigned char>(bytes[at + b]);
    return static_cast<std::size_t>(value);
  };
  auto const padded = [](std::size_t size) { return (size + 7) / 8 * 8; };
  auto const remove = [&](std::size_t at, std::size_t count) {
    auto const first = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    bytes.erase(first, first + static_cast<std::ptrdiff_t>(count));
  };
  std::size_t at =
      72 + padded(number(40)) + padded(number(48)) + padded(number(56)) + 24 * number(64);
  for (std::size_t parameters = number(8) >> 32U; parameters != 0; --parameters) {
    remove(at + 8, 8);  // rows
    std::size_t const name = number(at) >> 32U;
    std::size_t blocks = 0;
    for (std::size_t b = 0; b < 3; ++b) blocks += padded(number(at + 8 + 8 * b));
    at += 32 + padded(name) + blocks;
  }
  if (version == 1) remove(56, 16);  // the optimizer's name and numbers: none
  bytes[8] = version;
  for (std::size_t b = 0; b < 8; ++b) bytes[16 + b] = static_cast<char>(bytes.size() >> (8 * b));
  seal(bytes);
  return bytes;
}

/// A row of numbers that are declared as a matrix.
struct Matrix {
  using Input = float;
  using Output = float;
  explicit Matrix(std::size_t rows)
      : factors(rows == 0 ? stagger::Parameter<>("factors", {1, 2, 3, 4, 5, 6})
                          : stagger::Parameter<>("factors", {1, 2, 3, 4, 5, 6}).matrix(rows)) {}
  stagger::Parameter<> factors;
  auto parameters() { return std::tie(factors); }
  void forward(stagger::Context& context, float const& x, float& y, stagger::NothingSaved&) {
    y = x * context[factors][2];
  }
  void backward(stagger::Context& context, float const& x, float const& dy, float& dx,
                stagger::NothingSaved&) {
    context.gradient(factors)[2] += x * dy;
    dx = dy * context[factors][2];
  }
};
struct OfWhole : Own {
  static constexpr bool element_wise = false;
};
template <class O> auto matrix_trainer(std::size_t rows, O optimizer) {
  return stagger::Pipeline{Matrix{rows}}.with(Square{}, optimizer, stagger::host::Threads{1});
}

}  // namespace

TEST_CASE("train/Checkpoints: a file of version 1 is read, and says that it names no optimizer",
          "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  auto train = trainer(stagger::optimizer::Sgd{});
  stagger::run(train.step(data));
  checkpoints.write(state(5), train.parameters());  // without an optimizer: two zeros
  auto const bytes = read(checkpoints.path(5));
  CHECK(std::vector<char>(bytes.begin() + 56, bytes.begin() + 72) == std::vector<char>(16, '\0'));
  write(checkpoints.path(5), as_version(1, bytes));
  auto reads = trainer(stagger::optimizer::Sgd{.momentum = 0.5});
  auto const found = checkpoints.restore("a model", reads);
  CHECK(found.warnings ==
        std::vector<std::string>{checkpoints.path(5) + " does not say which optimizer wrote it, so "
                                                       "that none was compared"});
  CHECK(reads.steps() == 5);
  CHECK(bits(reads) == bits(train));
}

TEST_CASE("train/Checkpoints: state of a matrix is not read for one of other rows", "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  auto train = matrix_trainer(2, OfWhole{});
  stagger::run(train.step(data));
  checkpoints.write(state(1), train);
  auto const read_by = [&](std::size_t rows, auto optimizer,
                           stagger::Restore what = stagger::Restore::everything) {
    auto reads = matrix_trainer(rows, optimizer);
    auto const before = bits(reads);
    auto const said = refusal([&] { return checkpoints.restore("a model", reads, what); });
    CHECK((bits(reads) == before) == (said != "accepted"));
    return said;
  };
  CHECK(read_by(2, OfWhole{}) == "accepted");
  for (std::size_t const rows : {std::size_t{0}, std::size_t{3}})
    CHECK_THAT(read_by(rows, OfWhole{}),
               Catch::Contains("has the state of '0.factors' with 2 rows, here Parameter::matrix "
                               "gives it " +
                               std::to_string(rows) + ", where the optimizer ") &&
                   Catch::EndsWith("or take the values alone: Restore::values"));
  CHECK(read_by(3, OfWhole{}, stagger::Restore::values) == "accepted");
  CHECK(read_by(3, OfWhole{}, stagger::Restore::other_optimizer) == "accepted");

  // A file of version 2 does not say how many there were.
  write(checkpoints.path(1), as_version(2, read(checkpoints.path(1))));
  CHECK(read_by(3, OfWhole{}) == "accepted");
  auto of_old = matrix_trainer(3, OfWhole{});
  CHECK(checkpoints.restore("a model", of_old).warnings ==
        std::vector<std::string>{
            checkpoints.path(1) +
            " does not say how many rows its matrices have, so that none were compared"});

  // For an optimizer by element, rows have no meaning.
  auto other = matrix_trainer(2, Own{});
  stagger::run(other.step(data));
  checkpoints.write(state(1), other);
  CHECK(read_by(3, Own{}) == "accepted");
}

TEST_CASE("train/Checkpoints: an optimizer that lies under a right checksum is refused or read",
          "[train]") {
  TemporaryFolder const folder;
  Checkpoints const checkpoints(folder.path());
  auto train = trainer(Own{});
  train.resume(5);
  checkpoints.write(state(5), train);
  auto const good = read(checkpoints.path(5));
  int refusals = 0;
  for (std::size_t i = 56; i < 72 + 64 + 96; ++i)  // lengths, texts and numbers
    for (int value : {0x00, 0x01, 0x7f, 0xff}) {
      auto bad = good;
      bad[i] = static_cast<char>(value);
      seal(bad);
      write(checkpoints.path(5), bad);
      try {
        (void)checkpoints.restore("a model", train);
      } catch (stagger::Error const& error) {
        ++refusals;
        CHECK(contains(error.what(), checkpoints.path(5)));
      }
    }
  CHECK(refusals > 100);
}

}  // namespace checkpoint_test
