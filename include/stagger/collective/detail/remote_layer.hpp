// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   One layer of a worker whose parameter server is in another process.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include <stagger/collective/messages.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/parameters/parameter_memory.hpp>
#include <stagger/parameters/version_tag.hpp>

namespace stagger::collective::detail {

using stagger::detail::ByteRange;

/// It has three blocks: the push that the server has not acknowledged yet, the values in use, and
/// the values on their way. So a push returns while its bytes travel and waits only for the push
/// before it, and an answer is reported when all of its values have arrived.
///
/// The session's lock guards everything but the blocks. The worker writes the first block while
/// there is no unacknowledged push, and uses the second; the transport reads the first and fills
/// the third.
class RemoteLayer {
 public:
  using VersionTag = stagger::detail::VersionTag;

  /// @param first  values before the first step, which the server may request from the worker that
  ///               joins first
  void make(std::span<std::byte const> first) {
    for (stagger::detail::ParameterBlock* const block : {&pushed_, &used_, &coming_})
      block->make(nullptr, first.size());
    write_push(first.data());
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return pushed_.size(); }

  /// Whether all of it is pushed or asked for, and no part.
  [[nodiscard]] bool is_whole(ByteRange part) const noexcept { return part.last > bytes(); }

  // Called by the worker.

  /// Begins a stream; earlier pushes and requests do not belong to it.
  void begin() noexcept { in_stream_ = contents_known_ = false; }
  /// The call that waited for values has ended by an error, so they are not requested again over
  /// the next connection: their answer would be taken for that of the next request.
  void stop_waiting() noexcept { state_ = State::idle; }
  [[nodiscard]] bool acknowledged() const noexcept { return !unacknowledged_; }
  /// @pre acknowledged(); the lock need not be held
  void write_push(std::byte const* values, ByteRange part = {}) noexcept {
    copy(pushed_.data(), values, part);
  }
  /// Likewise, by an exchange of memory of the same size.
  void hand_over(stagger::detail::ParameterBlock& values) noexcept { std::swap(pushed_, values); }
  /// @return  the message for the push, or part of one, that was written last; without its layer
  Message push(MessageKind kind, ByteRange part = {}) noexcept {
    std::uint64_t const bytes = std::min(part.last, this->bytes()) - part.first;
    in_stream_ = true;
    if (kind == MessageKind::push_rest)
      return {.kind = kind, .number = pushes_ + 1, .bytes = bytes};
    unacknowledged_ = true;
    return push_ = {.kind = kind, .number = ++pushes_, .bytes = bytes};
  }
  /// The newest values are asked for.
  /// @param workers  of the server
  void read(std::size_t workers) {
    if (contains_.size() != workers) {
      contains_ = FixedArray<std::uint32_t>(workers);
      coming_contains_ = FixedArray<std::uint32_t>(workers);
    }
    state_ = State::reading;
  }
  [[nodiscard]] bool reading() const noexcept { return state_ == State::reading; }
  void take_read() noexcept {
    contain(0);
    use_coming();
  }
  /// Asks for a snapshot. If an earlier request is under way, it is answered first; this one is
  /// sent then, unless that answer contains as much.
  /// @param rounds  what the snapshot must contain, or all_rounds
  /// @return        whether request() is to be sent now
  [[nodiscard]] bool ask(MessageKind kind, std::uint32_t rounds, ByteRange part = {}) noexcept {
    if (state_ == State::arrived) use_coming();  // the next values come to the same memory
    bool const sent = std::exchange(state_, State::asked) != State::asked;
    if (sent) under_way_ = rounds;
    in_stream_ = true;
    rounds_ = rounds;
    part_ = {part.first, std::min(part.last, bytes())};
    std::uint64_t const late = kind == MessageKind::ask_rest   ? part.first
                               : kind == MessageKind::ask_late ? part.last
                                                               : 0;
    ask_ = {
        .kind = kind, .rounds = rounds == stagger::detail::all_rounds ? 0 : rounds, .number = late};
    return sent;
  }
  /// The message for the last ask(), without its layer.
  [[nodiscard]] Message const& request() const noexcept { return ask_; }
  /// Puts values that have arrived to use.
  /// @param exact  only if they contain precisely `rounds`
  void take(std::uint32_t rounds, bool exact) noexcept {
    if (state_ == State::arrived && (!exact || rounds >= rounds_)) use_coming();
  }
  /// Exchanges memory of the same size for that of values that have arrived; they cannot be taken
  /// again.
  void take_over(stagger::detail::ParameterBlock& values) noexcept {
    use_coming();
    std::swap(used_, values);
  }
  /// Notes that the values of a part have arrived; they are not kept. @pre ask() for that part
  void take_part() noexcept { state_ = State::idle; }
  /// Copies the part that has arrived; the lock need not be held.
  void copy_part_to(std::byte* values, ByteRange part) const noexcept {
    copy(values, coming_.data(), part);
  }
  /// Copies the values in use; the lock need not be held.
  void copy_to(std::byte* values) const noexcept { copy(values, used_.data()); }
  /// What the values in use contain. @pre values were read
  [[nodiscard]] VersionTag contains(int worker) const noexcept { return tag_of(contains_, worker); }

  // Called for messages of the server.

  /// The memory into which the values of an answer are received.
  /// @param of_stream  whether it belongs to the current stream; otherwise its values are not used
  /// @throws Error     bad_data for an answer of another length, or that was not requested
  [[nodiscard]] std::span<std::byte> payload_buffer(Message const& message, bool of_stream) {
    bool const answers = message.kind != MessageKind::newest;
    bool const last = message.kind == MessageKind::last_answer;
    std::uint32_t const rounds = last ? stagger::detail::all_rounds : message.rounds;
    bool const asked = answers && state_ == State::asked && (!of_stream || rounds == under_way_);
    ByteRange part = asked ? part_ : ByteRange{0, bytes()};
    if (answers && !of_stream && message.bytes < bytes()) part = {0, message.bytes};
    if (message.bytes != part.size())
      refuse_message(message,
                     "does not have the length of the layer or of the part that was asked for");
    if (!reading() && !asked) refuse_message(message, "was not asked for");
    return coming_.span().subspan(part.first, part.size());
  }
  /// The memory for the message that says what the next answer contains. An answer of an earlier
  /// stream is not used.
  /// @throws Error  bad_data for another number of workers, or if no answer was requested
  [[nodiscard]] std::span<std::byte> contents_buffer(Message const& message) {
    auto const counts = std::span(coming_contains_.data(), coming_contains_.size());
    if (!reading() && state_ != State::asked) refuse_message(message, "was not asked for");
    if (message.bytes != counts.size_bytes())
      refuse_message(message, "is not about as many workers");
    return std::as_writable_bytes(counts);
  }
  void contents_arrive() noexcept { contents_known_ = true; }
  /// @param pushes  that this worker has made so far
  void newest(std::uint64_t pushes) noexcept {
    state_ = State::idle;
    pushes_ = pushes;
    unacknowledged_ = false;
  }
  void acknowledge(Message const& message) {
    if (message.number > pushes_) refuse_message(message, "acknowledges what was not pushed");
    if (message.number == pushes_) unacknowledged_ = false;
  }
  enum class Arrival : std::uint8_t {
    unwanted,  ///< it belongs to a stream that has ended
    too_old,   ///< the worker has asked for more meanwhile: request() is to be sent
    usable
  };
  /// @param exact    whether it contains precisely the rounds that it answers; otherwise it follows
  ///                 a message that says what it contains
  /// @throws Error   bad_data if it does not
  [[nodiscard]] Arrival arrive(Message const& message, int worker, bool exact) {
    bool const last = message.kind == MessageKind::last_answer;
    bool const known = std::exchange(contents_known_, false);
    if (state_ != State::asked) return Arrival::unwanted;
    if (exact) contain(message.rounds);
    if (!exact && !last && !known) refuse_message(message, "does not say what it contains");
    there_ = last ? stagger::detail::all_rounds
                  : std::max(message.rounds, tag_of(coming_contains_, worker).rounds());
    if (there_ < rounds_) {
      under_way_ = rounds_;
      return Arrival::too_old;
    }
    state_ = State::arrived;
    return Arrival::usable;
  }
  /// How many rounds the last answer contains, at least; all_rounds for the last values.
  [[nodiscard]] std::uint32_t rounds_there() const noexcept { return there_; }
  /// Repeats over another connection what the server may not have received.
  /// @param say     (message without its layer)
  /// @param stream  whether the worker's stream is still running
  template <class Say> void repeat(Say say, bool stream) {
    if (reading()) say(Message{.kind = MessageKind::read});
    if (!stream || !in_stream_) return;
    if (unacknowledged_) say(push_);
    if (state_ != State::asked) return;
    under_way_ = rounds_;
    say(ask_);
  }
  /// The payload of a push, of a part of one, or of the first values.
  [[nodiscard]] std::span<std::byte const> payload(Message const& message) noexcept {
    return message.kind == MessageKind::push_rest ? pushed_.span().last(message.bytes)
                                                  : pushed_.span().first(message.bytes);
  }

 private:
  enum class State : std::uint8_t { idle, asked, reading, arrived };

  void copy(std::byte* to, std::byte const* from, ByteRange part = {}) const noexcept {
    std::size_t const last = std::min(part.last, bytes());
    if (last != 0) std::memcpy(to + part.first, from + part.first, last - part.first);
  }
  /// Notes that the values in transit contain `rounds` pushes of every worker.
  void contain(std::uint32_t rounds) noexcept {
    std::fill(coming_contains_.begin(), coming_contains_.end(), rounds);
  }
  [[nodiscard]] static VersionTag tag_of(FixedArray<std::uint32_t> const& pushes,
                                         int worker) noexcept {
    return {{pushes.data(), pushes.size()}, worker};
  }
  void use_coming() noexcept {
    std::swap(used_, coming_);
    std::swap(contains_, coming_contains_);
    state_ = State::idle;
  }

  State state_ = State::idle;
  bool unacknowledged_ = false;
  bool in_stream_ = false;       // whether the last push or request is of the stream that runs
  std::uint32_t rounds_ = 0;     // asked for
  ByteRange part_{};             // likewise
  std::uint32_t under_way_ = 0;  // rounds of the request that was sent last
  std::uint32_t there_ = 0;      // rounds in the last answer
  std::uint64_t pushes_ = 0;     // made
  Message push_{}, ask_{};       // the last ones
  bool contents_known_ = false;  // the server has said what its next answer contains
  FixedArray<std::uint32_t> contains_, coming_contains_;  // [workers] `used_`, and `coming_`
  stagger::detail::ParameterBlock pushed_, used_, coming_;
};

}  // namespace stagger::collective::detail
