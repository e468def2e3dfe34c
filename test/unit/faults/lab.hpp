// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A parameter server and its workers in virtual time, with faults, all drawn from one number.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/collective/server_connection.hpp>
#include <stagger/core/error.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/model/optimizer.hpp>
#include <stagger/sim/clock.hpp>

#include "faults/disk.hpp"
#include "faults/ledger.hpp"
#include "faults/line.hpp"
#include "faults/model.hpp"
#include "faults/script.hpp"
#include "faults/tally.hpp"
#include "temporary_folder.hpp"

namespace lab {

struct Fault {
  enum Kind : std::uint8_t { kill, freeze, freeze_server, cut, slow, mishap, restart, kinds };
  Kind kind{};
  int worker = 0;
  double at_s = 0;
  double s = 0;  // how long; of kill: until the worker is started again, or negative
  Mischance mischance{};
  int writes = -1;      // of restart: of so many more files, before it is killed; negative: at once
  bool behind = false;  // one of them, not in the one that follows

  [[nodiscard]] std::string words() const {
    static constexpr char const* mishaps[] = {"lost", "doubled", "late"};
    switch (kind) {
      case kill:
        return text("worker ", worker, " killed at ", at_s, " s, back after ", s, " s");
      case freeze:
        return text("worker ", worker, " frozen at ", at_s, " s for ", s, " s");
      case freeze_server:
        return text("server frozen at ", at_s, " s for ", s, " s");
      case cut:
        return text("connection of worker ", worker, " cut at ", at_s, " s");
      case slow:
        return text("messages of worker ", worker, " ", s, " s late from ", at_s, " s on");
      case mishap:
        return text("message ", mischance.count, mischance.way == 0 ? " of" : " to", " worker ",
                    worker, " ", mishaps[static_cast<int>(mischance.what)], ", by ",
                    mischance.delay_s, " s");
      default:
        return text("server killed at ", at_s, " s, ",
                    writes < 0 ? "" : text(behind ? "behind" : "after", " ", writes, " files, "),
                    "started again ", away_s(), " s later");
    }
  }
  /// Of a server.
  [[nodiscard]] double away_s() const noexcept { return s / 20; }
  /// Nobody has to notice it.
  [[nodiscard]] bool pauses() const noexcept { return kind == freeze || kind == freeze_server; }
};

/// What has happened, over all seeds.
struct Counts {
  std::uint64_t events = 0;
  std::uint64_t added = 0;
  std::uint64_t sentences = 0;
  std::uint64_t done = 0;  // workers that have done all their work
  std::uint64_t workers = 0;
};

/// Of replicas and of groups that share layers, the server sees that stages push and ask at different
/// times, and that some layers have no parameters; how their ranks add up before that is covered by
/// engine/worker_replicas_test.cpp.
class Lab final : public World, private sim::EventTarget {
 public:
  explicit Lab(std::uint64_t seed)
      : random_(seed),
        model_(seed % 8 == 3 ? draw_late_model(random_, seed % 16 == 3)
                             : draw_model(random_, seed)),
        durable_(seed % 8 == 7) {
    bool const weighed = model_.pushes != Pushes::changes;
    go_on_ = random_.one_in(2);
    // Scales of gradients are exact where at most three workers share them.
    int const count = random_.from_to(1, weighed && go_on_ ? 3 : 5);
    TallyRules rules{model_.adds, model_.pushes, {}, first_value, go_on_};
    for (int n = 0; n < count; ++n)
      rules.weights.push_back(weighed && go_on_ ? 1 : random_.of<double>({1, 0.5, 0.25}));
    options_ = {.workers = count,
                .shards = random_.from_to(1, 3),
                .weights = rules.weights,
                .log = !durable_,
                .on_failure = go_on_ ? stagger::collective::OnFailure::go_on
                                     : stagger::collective::OnFailure::fail_fast};
    if (durable_) {
      folder_ = std::make_unique<TemporaryFolder>();
      options_.durable = folder_->path();
    }
    elements_.resize(random_.below(4) + 1);
    for (std::size_t& each : elements_) each = random_.below(20) + 1;
    draw_shared(seed);
    // Values of means do not count pushes, nor where layers are late in part.
    if (model_.late == nullptr && !stagger::staleness::averages(model_.pushes))
      rules.clocks = static_cast<std::size_t>(count);
    for (std::size_t& each : elements_)
      if (each != 0) each += rules.clocks;
    clock_ = std::make_unique<stagger::sim::Clock>(draw_links());
    if (durable_) time().queue.at(1, *this, look_who_is_missing, 0);
    ledger_ = std::make_unique<Ledger>(model_, rules, go_on_, durable_, elements_, time().queue);
    if (!random_.one_in(6))
      for (int left = random_.from_to(1, 3); left > 0; --left) draw_fault();
    rules_.optimizer = stagger::detail::optimizer_call<false>(sgd);
    rules_.model_bytes = 1U << 20U;
    rules_.late = model_.late;
    rules_.late_policy = model_.late_policy.get();
    start_server();
    draw_workers();
    draw_moves(seed);
    for (auto& worker : workers_) {
      double const weight = rules.weights[static_cast<std::size_t>(worker->number())];
      worker->clocks = rules.clocks;
      worker->tick = model_.pushes == Pushes::changes ? 1 : -1 / weight;
    }
    counts_exactly_ = model_.pushes == Pushes::changes || !go_on_;
  }
  Lab(Lab const&) = delete;
  Lab& operator=(Lab const&) = delete;
  ~Lab() {
    for (auto& worker : workers_) worker->rises_s = -1, worker->kill();
    time().queue.remove(*this);
  }

  /// @return what was wrong, or nothing
  std::string const& run(Counts& counts) {
    std::uint64_t events = 0;
    for (;;) {
      disk().begin_event();
      if (disk().armed()) ledger_->note();
      if (!ledger_->wrong().empty() || over() || !time().queue.next()) break;
      if (disk().dead()) {
        if (ledger_->roll_back(disk())) left_unnoticed_ = true;
        kill_server(dying_);
      }
      if (++events > most_events) ledger_->wrong("it does not end");
      ledger_->look();
      digest_ = (digest_ ^ static_cast<std::uint64_t>(now() * 1e9)) * 0x100000001b3U;
    }
    disk().disarm();
    counts.events += events;
    if (ledger_->wrong().empty()) finish(counts);
    return ledger_->wrong();
  }
  /// What was drawn.
  [[nodiscard]] std::string words() const {
    std::string all = text(model_.name, ", ", options_.workers, " workers, ", elements_.size(),
                           " layers, ", go_on_ ? "go_on" : "fail_fast", durable_ ? ", durable" : "",
                           in_parts_ ? ", in parts" : "", shared_.empty() ? "" : ", shared");
    for (Fault const& fault : faults_) all += "; " + fault.words();
    return all;
  }
  [[nodiscard]] Ledger& ledger() noexcept { return *ledger_; }
  /// Of when everything happened.
  [[nodiscard]] std::uint64_t digest() const noexcept { return digest_; }

 private:
  static constexpr std::uint64_t most_events = 1000000;
  static constexpr std::uint32_t look_who_is_missing = Fault::kinds;
  static constexpr double first_value = 1 << 20;
  static constexpr stagger::optimizer::Sgd sgd{.rate = 1, .momentum = 0, .weight_decay = 0};

  [[nodiscard]] sim::SharedTime& time() { return *clock_->time(); }
  [[nodiscard]] double now() { return time().queue.now_s(); }

  stagger::schedule::Links draw_links() {
    stagger::schedule::Links links;
    if (!random_.one_in(4)) links.rate = random_.between(2e3, 1e5);
    if (!random_.one_in(4)) links.latency_s = random_.between(0, 0.05);
    if (random_.one_in(4)) links.loss = random_.between(0, 0.2);
    links.sharing = static_cast<stagger::schedule::Sharing>(random_.below(3));
    links.duplex = static_cast<stagger::schedule::Duplex>(random_.below(2));
    return links;
  }
  /// Of workers whose ranks share layers, or that have replicas: what the server sees of them.
  void draw_shared(std::uint64_t seed) {
    Random random(~seed);  // so that seeds still draw what they did
    if (model_.streams || !random.one_in(3)) return;
    in_parts_ = true;
    if (model_.late == nullptr && random.one_in(2)) shared_ = "groups of 2, layer 0 in columns";
    for (std::size_t& each : elements_)  // of a copy, the server knows the first alone
      if (random.one_in(4)) each = 0;
    if (std::count(elements_.begin(), elements_.end(), 0U) == static_cast<long>(elements_.size()))
      elements_[0] = 1;
  }
  void draw_fault() {
    Fault fault;
    fault.kind = static_cast<Fault::Kind>(random_.below(Fault::kinds));
    if (random_.one_in(3)) fault.kind = Fault::mishap;
    if (durable_ && faults_.empty()) fault.kind = Fault::restart;
    fault.worker = random_.from_to(0, options_.workers - 1);
    fault.at_s = random_.between(0, random_.one_in(4) ? 1 : 12);
    fault.s = random_.one_in(2) ? random_.between(0, 5) : random_.between(5, 200);
    if (fault.kind == Fault::kill && random_.one_in(2)) fault.s = -1;
    if (fault.kind == Fault::slow) fault.s = random_.between(0, 2);
    if (fault.kind == Fault::mishap)
      fault.mischance = {random_.from_to(0, 1), random_.below(random_.one_in(2) ? 12 : 60),
                         static_cast<Mishap>(random_.below(3)), random_.between(0, 4)};
    if (fault.kind == Fault::restart && durable_ && random_.one_in(2)) {
      fault.writes = random_.from_to(0, 9);
      fault.behind = random_.one_in(2);
    }
    faults_.push_back(fault);
    if (fault.kind != Fault::mishap)
      time().queue.at(fault.at_s, *this, fault.kind, faults_.size() - 1);
  }
  void draw_workers() {
    stagger::detail::WorkerRules rules;
    rules.push_minibatches = model_.per_push;
    rules.pushes = model_.pushes;
    rules.adds = model_.adds;
    rules.ahead = model_.ahead();
    rules.optimizer = stagger::detail::optimizer_call<true>(sgd);
    rules.late = model_.late;
    rules.late_policy = model_.late_policy.get();
    rules.shared = shared_;
    int const minibatches = random_.from_to(1, 12);
    bool const differ = random_.one_in(3);
    for (int n = 0; n < options_.workers; ++n) {
      workers_.push_back(std::make_unique<Worker>(*this, time(), model_, n, elements_, rules,
                                                  random_.below(1U << 30U), first_value));
      Worker& worker = *workers_.back();
      if (in_parts_) worker.parts = 1 + static_cast<std::size_t>(n) % elements_.size();
      worker.plan(differ ? random_.from_to(1, 12) : minibatches);
      worker.compute_s = random_.between(0.01, random_.one_in(3) ? 2 : 0.5);
      worker.begins_s = random_.one_in(2) ? 0 : random_.between(0, 2);
      for (Fault const& fault : faults_)
        if (fault.kind == Fault::kill && fault.worker == n) worker.rises_s = fault.s;
    }
    lines_of_.resize(workers_.size());
  }
  /// Workers that leave, for good or for a while, fail by themselves, and take two streams.
  void draw_moves(std::uint64_t seed) {
    Random random(seed * 0x9e3779b97f4a7c15U + 1);
    moves_ = random.one_in(3);
    bool const two_streams = model_.streams && random.one_in(2);
    for (auto const& each : workers_) {
      Worker& worker = *each;
      int const all = worker.planned();
      int const left = random.from_to(1, std::max(1, all - 1));
      double const absent_s = random.one_in(2) ? -1 : random.between(0, 6);
      int const fails_at = random.one_in(5) ? random.from_to(1, 8) : 0;
      bool const leaves = random.one_in(3);
      if (!moves_) continue;
      worker.two_streams = two_streams && all > 1;
      if (leaves && all > 1 && !(model_.streams && !worker.two_streams))
        worker.leaves_at = model_.streams ? all / 2 : left;
      worker.absent_s = absent_s;
      worker.fails_at = fails_at;
      own_failures_ = own_failures_ || fails_at != 0;
    }
  }
  void start_server() {
    server_ = std::make_shared<remote::ServerInProcess>(options_);
    ledger_->serve(server_);
  }

  std::unique_ptr<remote::Transport> connect(int worker, Sleeper& sleeper, remote::MessageEnd& end,
                                             double const& frozen_s) override {
    if (server_ == nullptr)
      stagger::raise(stagger::Errc::io, "worker ", worker,
                     " cannot connect with the parameter server; check whether it runs");
    lines_.push_back(std::make_unique<Line>(*ledger_, time(), worker, sleeper, end, server_, rules_,
                                            frozen_s, server_frozen_s_));
    Line& line = *lines_.back();
    lines_of_[static_cast<std::size_t>(worker)] = &line;
    for (Fault const& fault : faults_) {
      if (fault.worker != worker) continue;
      if (fault.kind == Fault::mishap) line.mischances.push_back(fault.mischance);
      if (fault.kind == Fault::slow && now() >= fault.at_s) line.slow_s = fault.s;
    }
    return std::make_unique<Line::Handle>(line);
  }
  void made(int worker, std::size_t l, double value) override {
    ledger_->tally(l).of(worker).made.insert(value);
  }
  void leaves(int worker) override {
    Line const* const line = lines_of_[static_cast<std::size_t>(worker)];
    if (line != nullptr && line->is_cut()) left_unnoticed_ = true;
  }
  /// Workers that have never failed, nor left and come back, count pushes alike.
  void sees(int worker, std::size_t l, Values const& clock, std::uint32_t rounds) override {
    if (!counts_exactly_) return;
    for (std::size_t n = 0; n < clock.size(); ++n) {
      Worker const& other = *workers_[n];
      if (clock[n] > other.pushes(l))
        wrong(text("worker ", worker, " sees ", clock[n], " pushes of worker ", n, ", which made ",
                   other.pushes(l)));
      bool const alike = workers_[static_cast<std::size_t>(worker)]->in_first_stream() &&
                         !ledger_->has_come_back(worker) &&
                         !ledger_->has_come_back(other.number()) && other.in_first_stream() &&
                         other.in_midst() && !other.ever_killed() &&
                         ledger_->active(other.number());
      if (alike && clock[n] < rounds)
        wrong(text("worker ", worker, " sees ", clock[n], " pushes of worker ", n, " and needs ",
                   rounds));
    }
  }
  void wrong(std::string const& words) override { ledger_->wrong(words); }

  /// As a server on a port does from time to time.
  void give_up_missing() {
    bool const misses = server_ != nullptr && server_->awaits_any();
    missed_s_ = misses ? missed_s_ + 1 : 0;
    if (missed_s_ > connection_s) ledger_->give_up();
    time().queue.at(now() + 1, *this, look_who_is_missing, 0);
  }
  /// A fault.
  void happen(std::uint32_t kind, std::size_t number) override {
    if (kind == look_who_is_missing) return give_up_missing();
    Fault const& fault = faults_[number];
    auto const w = static_cast<std::size_t>(fault.worker);
    Worker& worker = *workers_[w];
    Line* const line = lines_of_[w];
    double const soon_s = random_.one_in(2) ? 0 : random_.between(0, 3);
    if (kind == Fault::kill) {
      if (line != nullptr && !worker.over()) line->cut(-1, soon_s);
      worker.kill();
    } else if (kind == Fault::freeze) {
      worker.frozen_s = std::max(worker.frozen_s, fault.at_s + fault.s);
    } else if (kind == Fault::freeze_server) {
      server_frozen_s_ = std::max(server_frozen_s_, fault.at_s + fault.s);
    } else if (kind == Fault::cut) {
      if (line != nullptr) line->cut(random_.between(0, 3), soon_s);
    } else if (kind == Fault::slow) {
      if (line != nullptr) line->slow_s = fault.s;
    } else if (server_ == nullptr) {
      start_server();
    } else if (fault.writes >= 0 && !disk().armed()) {
      disk().arm(fault.writes, fault.behind);
      dying_ = number;
    } else {
      kill_server(number);
    }
  }
  /// @param number  of the fault
  void kill_server(std::size_t number) {
    for (auto& each : lines_)
      if (each->lose_server(random_.between(0, 3))) left_unnoticed_ = true;
    server_ = nullptr;
    disk().disarm();
    ledger_->serve(nullptr);
    server_frozen_s_ = 0;
    time().queue.at(now() + faults_[number].away_s(), *this, Fault::restart, number);
  }

  /// Whether all workers have the server's weights when they have done their work.
  [[nodiscard]] bool same_in_the_end() const {
    if (moves_) return false;
    if (model_.streams) return true;
    int const planned = workers_[0]->planned();
    for (auto const& worker : workers_)
      if (worker->planned() != planned || planned % model_.per_push != 0) return false;
    return model_.adds == Adds::in_worker_order &&
           model_.needs(planned) == planned / model_.per_push;
  }
  [[nodiscard]] bool over() const {
    auto const ended = [](auto const& each) { return each->over(); };
    auto const open = [](auto const& each) { return each->open(); };
    return std::all_of(workers_.begin(), workers_.end(), ended) &&
           std::none_of(lines_.begin(), lines_.end(), open);
  }

  void finish(Counts& counts) {
    ledger_->close();
    double paused_s = 0;
    bool gentle = true;    // nobody had to notice anything
    bool killed = go_on_;  // or nothing but that some workers have gone, who had been there
    for (Fault const& fault : faults_) {
      bool const restarts = durable_ && fault.kind == Fault::restart;
      bool const pauses = fault.pauses() || restarts;
      if (pauses) paused_s += restarts ? fault.away_s() + 3 : fault.s;
      gentle = gentle && pauses;
      killed =
          killed &&
          (pauses || (fault.kind == Fault::kill && ledger_->came_s(fault.worker) < fault.at_s));
    }
    gentle =
        gentle && paused_s < connection_s / 2 && !left_unnoticed_ && (go_on_ || !own_failures_);
    killed = killed && paused_s < connection_s / 2 && !left_unnoticed_;
    for (auto const& worker : workers_) {
      auto const& sentences = worker->sentences();
      std::string const last = sentences.empty() ? "" : sentences.back();
      if (!worker->over()) wrong(text("worker ", worker->number(), " waits for ever"));
      if (!worker->done() && !worker->killed() && !worker->left_for_good() && sentences.empty())
        wrong(text("worker ", worker->number(), " has ended without a sentence"));
      bool const steady = !worker->ever_killed() && !worker->has_left() && worker->fails_at == 0;
      if (((gentle && (steady || !moves_)) || (killed && steady)) &&
          !(worker->done() && sentences.empty()))
        wrong(text("worker ", worker->number(), " has not done its work, though it could: ", last));
      for (std::string const& words : sentences)
        if (words.find("; ") == words.npos) wrong("a sentence without a remedy: " + words);
      if (gentle && same_in_the_end())
        for (std::size_t l = 0; l < elements_.size(); ++l)
          if (worker->values(l) != ledger_->tally(l).newest())
            wrong(text("worker ", worker->number(), " ends with other weights than the server"));
      if (worker->done()) ++counts.done;
      counts.sentences += sentences.size();
    }
    counts.workers += workers_.size();
    for (std::size_t l = 0; l < elements_.size(); ++l) counts.added += ledger_->tally(l).added();
  }

  Random random_;
  Model model_;
  bool durable_;
  std::unique_ptr<TemporaryFolder> folder_;  // of a durable server
  bool go_on_ = false;
  stagger::collective::ServerOptions options_;
  std::vector<std::size_t> elements_;  // [layers]
  bool in_parts_ = false;              // layers push and ask at different times
  std::string shared_;                 // what members of a group share, in words
  std::vector<Fault> faults_;
  std::unique_ptr<stagger::sim::Clock> clock_;
  std::unique_ptr<Ledger> ledger_;
  remote::RemoteRules rules_;
  std::shared_ptr<remote::ServerInProcess> server_;
  double server_frozen_s_ = 0;
  std::size_t dying_ = 0;        // the fault by which its process is about to end amid its files
  double missed_s_ = 0;          // how long it has waited for others
  bool moves_ = false;           // some workers may leave, fail or take two streams
  bool own_failures_ = false;    // some fail by themselves
  bool counts_exactly_ = false;  // the clocks in the values count pushes
  bool left_unnoticed_ = false;  // a worker has left while no server could hear it
  std::vector<std::unique_ptr<Line>> lines_;
  std::vector<Line*> lines_of_;  // [workers] the last one of each
  std::vector<std::unique_ptr<Worker>> workers_;
  std::uint64_t digest_ = 0;
};

}  // namespace lab
