// SPDX-License-Identifier: Apache-2.0
#include <stagger/core/file.hpp>

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"

#include "../temporary_folder.hpp"

namespace file_test {

namespace {

/// What brings a file to the disk, in the order of the calls.
struct DiskCall {
  enum Kind { sync_file, sync_folder, rename } kind;
  ino_t file;         // of the file, or the folder
  std::size_t bytes;  // of the file at that moment
};
thread_local std::vector<DiskCall>* disk_calls = nullptr;

}  // namespace

// In place of the C library's: notes the call, and makes it.
extern "C" int fsync(int descriptor) {
  struct stat status{};
  if (disk_calls != nullptr && ::fstat(descriptor, &status) == 0)
    disk_calls->push_back({S_ISDIR(status.st_mode) ? DiskCall::sync_folder : DiskCall::sync_file,
                           status.st_ino, static_cast<std::size_t>(status.st_size)});
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}
extern "C" int rename(char const* from, char const* to) noexcept {
  struct stat status{};
  if (disk_calls != nullptr && ::stat(from, &status) == 0)
    disk_calls->push_back(
        {DiskCall::rename, status.st_ino, static_cast<std::size_t>(status.st_size)});
  return ::renameat(AT_FDCWD, from, AT_FDCWD, to);
}

namespace {

namespace fs = std::filesystem;

std::string contents(std::string const& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The sentence of the error that writing ends with, empty if it does not.
std::string failure(std::string const& path, std::string const& text = "text") {
  try {
    stagger::write_file(path, text);
  } catch (stagger::Error const& error) {
    CHECK(error.code() == stagger::Errc::io);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("core/write_file: a file is there whole, alone, and readable", "[core]") {
  TemporaryFolder const folder;
  std::string text(3'000'000, 'x');
  text[1'500'000] = '\0';
  mode_t const old = umask(022);
  stagger::write_file(folder / "trace.json", text);
  umask(old);
  CHECK(contents(folder / "trace.json") == text);
  CHECK(folder.names() == std::vector<std::string>{"trace.json"});
  CHECK((fs::status(folder / "trace.json").permissions() & fs::perms::all) == fs::perms{0644});
  stagger::write_file(folder / "trace.json", "");
  CHECK(contents(folder / "trace.json").empty());
}

TEST_CASE("core/write_file: the file is on the disk before it has its name, and then its folder",
          "[core]") {
  TemporaryFolder const folder;
  for (std::string const text : {"a file", "another in its place"}) {
    std::vector<DiskCall> calls;
    disk_calls = &calls;
    stagger::write_file(folder / "file", text);
    disk_calls = nullptr;
    struct stat file{};
    struct stat parent{};
    REQUIRE(::stat((folder / "file").c_str(), &file) == 0);
    REQUIRE(::stat((folder / ".").c_str(), &parent) == 0);
    REQUIRE(calls.size() == 3);
    CHECK(calls[0].kind == DiskCall::sync_file);
    CHECK(calls[0].file == file.st_ino);
    CHECK(calls[0].bytes == text.size());
    CHECK(calls[1].kind == DiskCall::rename);
    CHECK(calls[1].file == file.st_ino);
    CHECK(calls[2].kind == DiskCall::sync_folder);
    CHECK(calls[2].file == parent.st_ino);
  }
}

TEST_CASE("core/write_file: a path without a folder is written to the current one", "[core]") {
  TemporaryFolder const folder;
  fs::path const before = fs::current_path();
  fs::current_path(folder / "");
  stagger::write_file("here.txt", "x");
  fs::current_path(before);
  CHECK(contents(folder / "here.txt") == "x");
}

TEST_CASE("core/WholeFile: nothing shows before commit, and nothing stays without it", "[core]") {
  TemporaryFolder const folder;
  stagger::write_file(folder / "a", "old");
  {
    stagger::WholeFile file(folder / "a");
    file.write("new, ");
    CHECK(contents(folder / "a") == "old");
    file.write("in two parts");
    CHECK(contents(folder / "a") == "old");
    CHECK(folder.names().size() == 2);
  }
  CHECK(contents(folder / "a") == "old");
  CHECK(folder.names().size() == 1);
  stagger::WholeFile file(folder / "a");
  file.write("new, ");
  file.write("in two parts");
  file.commit();
  CHECK(contents(folder / "a") == "new, in two parts");
  CHECK(folder.names().size() == 1);
}

TEST_CASE("core/write_file: a disk that is full leaves the old file and no other", "[core]") {
  TemporaryFolder const folder;
  stagger::write_file(folder / "a", "old");
  rlimit old{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &old) == 0);
  rlimit small = old;
  small.rlim_cur = 4096;
  auto const handler = signal(SIGXFSZ, SIG_IGN);  // the limit stands in for a full disk
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string const sentence = failure(folder / "a", std::string(100'000, 'n'));
  REQUIRE(setrlimit(RLIMIT_FSIZE, &old) == 0);
  signal(SIGXFSZ, handler);
  CHECK_THAT(sentence, Catch::Contains(folder / "a") && Catch::Contains("make room"));
  CHECK(contents(folder / "a") == "old");
  CHECK(folder.names().size() == 1);
}

TEST_CASE("core/write_file: a place that cannot be written to is named, with a remedy", "[core]") {
  TemporaryFolder const folder;
  stagger::write_file(folder / "plain", "x");
  fs::create_directory(folder / "sub");
  CHECK_THAT(failure(folder / "missing/a"),
             Catch::Contains("missing/a'") && Catch::Contains("create the folder first"));
  CHECK_THAT(failure(folder / "plain/a"),
             Catch::Contains("plain/a'") && Catch::Contains("create the folder first"));
  CHECK_THAT(failure(folder / "sub"), Catch::Contains("it is a folder"));
  CHECK_THAT(failure(""), Catch::Contains("names no file"));
  CHECK_THAT(failure("/proc/stagger"), Catch::Contains("'/proc/stagger'"));  // not even for root
  CHECK_THAT(failure("/dev/full"), Catch::Contains("'/dev/full'") && Catch::Contains("make room"));
  CHECK(folder.names().size() == 2);
  if (geteuid() != 0) {  // root may write everywhere
    REQUIRE(chmod((folder / "sub").c_str(), 0555) == 0);
    CHECK_THAT(failure(folder / "sub/a"), Catch::Contains("that you may write to"));
    REQUIRE(chmod((folder / "sub").c_str(), 0755) == 0);
  }
}

TEST_CASE("core/write_file: permissions and symbolic links stay", "[core]") {
  TemporaryFolder const folder;
  stagger::write_file(folder / "real", "old");
  REQUIRE(chmod((folder / "real").c_str(), 0640) == 0);
  fs::create_symlink("real", folder / "link");
  stagger::write_file(folder / "link", "new");
  CHECK(fs::is_symlink(folder / "link"));
  fs::create_symlink("nothing", folder / "dangling");
  CHECK_THROWS_WITH(stagger::write_file(folder / "dangling", "new"),
                    Catch::Contains("is a link to nothing"));
  CHECK(fs::is_symlink(folder / "dangling"));
  CHECK(contents(folder / "real") == "new");
  CHECK((fs::status(folder / "real").permissions() & fs::perms::all) == fs::perms{0640});
  CHECK(folder.names().size() == 3);
}

TEST_CASE("core/write_file: what is no plain file is written in place", "[core]") {
  TemporaryFolder const folder;
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  std::string seen;
  std::thread reader([&] { seen = contents(folder / "pipe"); });
  stagger::write_file(folder / "pipe", "through");
  reader.join();
  CHECK(seen == "through");
  CHECK(fs::is_fifo(folder / "pipe"));
  CHECK(failure("/dev/null").empty());
}

TEST_CASE("core/write_file: names as long as the system allows", "[core]") {
  TemporaryFolder const folder;
  std::string const name(255, 'n');
  stagger::write_file(folder / name, "x");
  CHECK(contents(folder / name) == "x");
}

TEST_CASE("core/WholeFile: one that is written at the same time has a temporary name of its own",
          "[core]") {
  TemporaryFolder const folder;
  stagger::WholeFile first(folder / "a");
  first.write("first, ");
  stagger::WholeFile second(folder / "a");
  second.write("second");
  first.write("whole");
  first.commit();
  CHECK(contents(folder / "a") == "first, whole");
  second.commit();
  CHECK(contents(folder / "a") == "second");
  CHECK(folder.names().size() == 1);
}

TEST_CASE("core/WholeFile: a temporary file is removed by others only if nobody writes it",
          "[core]") {
  TemporaryFolder const folder;
  stagger::WholeFile living(folder / "a");
  std::string const temporary = folder / folder.names().at(0);
  stagger::detail::remove_abandoned(temporary);
  CHECK(fs::exists(temporary));
  std::ofstream(folder / ".a.17-0.tmp") << "of a process that was killed";
  stagger::detail::remove_abandoned(folder / ".a.17-0.tmp");
  CHECK_FALSE(fs::exists(folder / ".a.17-0.tmp"));
  fs::remove(temporary);
  CHECK_THROWS_WITH(living.commit(),
                    Catch::EndsWith("another program has removed its temporary file; let one "
                                    "program at a time write into that folder"));
}

TEST_CASE("core/write_file: two writers of one name never mix", "[core]") {
  TemporaryFolder const folder;
  std::string const a(200'000, 'a');
  std::string const b(200'000, 'b');
  auto const write = [&](std::string const& text) {
    for (int i = 0; i < 20; ++i) stagger::write_file(folder / "f", text);
  };
  std::thread first(write, a);
  std::thread second(write, b);
  bool whole = true;
  for (int i = 0; i < 50; ++i) {
    std::string const now = contents(folder / "f");
    whole = whole && (now.empty() || now == a || now == b);  // empty: before the first one
  }
  first.join();
  second.join();
  CHECK(whole);
  CHECK(folder.names() == std::vector<std::string>{"f"});
}

TEST_CASE("core/WholeFile: a process that is killed while writing leaves the old file", "[core]") {
  TemporaryFolder const folder;
  stagger::write_file(folder / "a", "old");
  pid_t const child = fork();
  if (child == 0) {
    stagger::WholeFile file(folder / "a");
    file.write(std::string(100'000, 'n'));
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(contents(folder / "a") == "old");
  stagger::write_file(folder / "a", "new");
  CHECK(contents(folder / "a") == "new");
}

}  // namespace file_test
