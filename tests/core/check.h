// The test programs of the C++ core: each file is a program of TEST blocks with CHECKs. It runs its tests in order, or
// those whose names contain its argument. A failed check, on any thread, fails the program but does not end its test.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

inline bool Add(const char* name, void (*body)()) {
  Tests().push_back({name, body});
  return true;
}

inline std::atomic<int> failures{0};

inline bool Report(bool holds, const char* file, int line, const std::string& what) {
  constexpr int kPrinted = 20;  // A check in a loop may fail often.
  if (!holds && failures.fetch_add(1) < kPrinted) {
    std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  }
  return holds;
}

template <typename A, typename B>
bool Equal(const A& a, const B& b, const char* file, int line, const char* text) {
  if (a == b) return true;
  std::ostringstream what;
  what << text << ": `" << a << "` is not `" << b << "`";
  return Report(false, file, line, what.str());
}

}  // namespace check

// Each is true if it holds: `if (!CHECK(ready)) return;`.
#define CHECK(condition) ::check::Report(static_cast<bool>(condition), __FILE__, __LINE__, "CHECK(" #condition ")")
#define CHECK_EQ(a, b) ::check::Equal((a), (b), __FILE__, __LINE__, "CHECK_EQ(" #a ", " #b ")")

#define TEST(name)                                                             \
  static void name();                                                          \
  [[maybe_unused]] static const bool name##_added = ::check::Add(#name, name); \
  static void name()

int main(int argc, char** argv) {
  int run = 0;
  int failed = 0;
  for (const check::Test& test : check::Tests()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    const int before = check::failures.load();
    test.body();
    const bool passed = check::failures.load() == before;
    std::printf("%s %s\n", passed ? "passed" : "FAILED", test.name);
    std::fflush(stdout);
    ++run;
    failed += passed ? 0 : 1;
  }
  std::printf("%d tests, %d failed\n", run, failed);
  return failed == 0 && run > 0 ? 0 : 1;  // A run without tests is a failure.
}
