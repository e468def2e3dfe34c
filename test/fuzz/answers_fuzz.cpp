// SPDX-License-Identifier: Apache-2.0
// answers_fuzz [COUNT [SEED]]: as messages_fuzz, of what a parameter server says, through a worker's end.
// The worker meanwhile joins, pushes, asks and waits as an engine does. Each connection ends well, or by
// a stagger::Error; anything else ends the program.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "connection.hpp"
#include "driver.hpp"

namespace {

using namespace fuzz;

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (Models const models : {Models::waves, Models::steps, Models::late, Models::arriving}) {
    all.push_back(Recorded(models).of_server);
    all.back().insert(all.back().begin(), static_cast<char>(models));  // which worker it is for
  }
  return all;
}

std::vector<std::string> const& pieces() {
  static std::vector<std::string> const all{
      frame({.kind = Kind::wanted}),
      frame({.kind = Kind::joined, .layer = 1, .rounds = 1, .number = 7}),
      frame({.kind = Kind::refused}, "there is no room for a worker; start another server"),
      frame({.kind = Kind::newest, .layer = 1, .number = 3}, std::string(bytes, '\2')),
      frame({.kind = Kind::pushed, .number = 2}),
      frame({.kind = Kind::answer, .stream = 1, .rounds = 1}, std::string(bytes, '\2')),
      frame({.kind = Kind::answer, .stream = 1, .rounds = 2}, std::string(8, '\2')),
      frame({.kind = Kind::last_answer, .layer = 1, .stream = 1}, std::string(bytes, '\2')),
      frame({.kind = Kind::lost, .stream = 1}, "worker 1 has failed; begin the next stream"),
      frame({.kind = Kind::lost, .stream = 2}, "worker 1 has failed; begin the next stream"),
      frame({.kind = Kind::waits, .rounds = 1}, "worker 1, which has made 0 pushes"),
      frame({.kind = Kind::choice, .layer = 1, .stream = 1, .rounds = 1, .number = 16}, "\3"),
      frame({.kind = Kind::contents, .layer = 1, .stream = 1}, std::string(4, '\1')),
      frame({.kind = Kind::contents, .stream = 1}, std::string(8, '\1')),
      frame({.kind = Kind::scores, .stream = 1, .rounds = 1}, std::string(16, '\0')),
      std::string(8, '\0'),
      std::string(8, '\xff'),
      std::string("\x01\0", 2)};
  return all;
}
std::vector<std::string_view> const views(pieces().begin(), pieces().end());
Program const program{"answers_fuzz", views, seeds(), 40, 4};

std::string const* current = nullptr;
void wrong(char const* words) { program.fail(words, *current); }

/// A server that says what was said to another worker, whatever this one does.
class Replayed final : public Wire {
 public:
  explicit Replayed(std::string const& text) : text_(text) {}
  std::uint64_t kinds = 0;  // that were read, as bits

 private:
  void connected() override { reader_ = std::make_unique<framed::FrameReader>(nullptr); }
  bool deliver(remote::MessageEnd& end) override {
    try {
      Message message;
      std::span<std::byte const> payload;
      while (end.next(message, payload))
        if (payload.size() != message.bytes) wrong("a message has another length");
      if (at_ == text_.size())
        sg::raise(sg::Errc::io, "the server has ended the connection; check whether it runs");
      std::size_t const next = end_of_frame(text_, at_);
      std::size_t left = (next == std::string::npos ? text_.size() : next) - at_;
      if (next != std::string::npos) {
        std::memcpy(&message, text_.data() + at_, sizeof(message));
        kinds |= std::uint64_t{1} << static_cast<unsigned>(message.kind) % 64U;
      }
      while (left != 0) {
        auto const space = reader_->space();
        std::size_t const count = std::min(space.size(), left);
        std::memcpy(space.data(), text_.data() + at_, count);
        at_ += count;
        left -= count;
        reader_->came(count, end);
      }
    } catch (sg::Error const& error) {
      std::string_view const words = error.what();
      if (words.size() < 20 || words.find("; ") == words.npos) wrong("a refusal says nothing");
      lose(std::current_exception());
    }
    return true;
  }

  std::string const& text_;
  std::size_t at_ = 1;
  std::unique_ptr<framed::FrameReader> reader_;
};

}  // namespace

int main(int argc, char** argv) {
  for (std::string const& seed : program.seeds) {
    Replayed wire(seed);
    if (!Worker(wire, static_cast<Models>(seed[0]), wrong).run()) {
      std::fprintf(stderr, "answers_fuzz: a connection fails that was not changed\n");
      return 1;
    }
  }
  long long came[2] = {0, 0};
  std::uint64_t kinds = 0;
  bool mend = false;
  return program.run(
      argc, argv,
      [&](std::string const& text) {
        if (text.empty()) return;
        mend = !mend;
        std::string const changed = mend ? mended(text, 1) : text;
        current = &changed;
        Replayed wire(changed);
        Worker worker(wire, static_cast<Models>(static_cast<unsigned char>(text[0]) % 4), wrong);
        ++came[worker.run() ? 1 : 0];
        kinds |= wire.kinds;
      },
      [&](long long count, unsigned long long seed) {
        std::printf("%lld connections with seed %llu: %lld failed, %lld ended well\n", count, seed,
                    came[0], came[1]);
        return came[0] > 0 && came[1] > 0 && (count < 10000 || (kinds & 0xfffU) == 0xfffU);
      });
}
