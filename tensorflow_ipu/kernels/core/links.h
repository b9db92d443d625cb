// A network of direct connections, one to each other worker.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_LINKS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_LINKS_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/core/link.h"
#include "tensorflow_ipu/kernels/core/network.h"

namespace tensorflow_ipu::core {

// One thread reads from all links as long as this object lives. Thread-safe.
class Links : public Network {
 public:
  // `sockets` are connected, by worker; -1 for this process. Whoever connects to the non-blocking `listener` (-1: none)
  // is sent `refusal`. The links close all of them; on an error the result is null and they are closed at once.
  static std::shared_ptr<Links> Make(const std::vector<int>& sockets, int listener, const std::string& refusal,
                                     Outcome* outcome);
  ~Links() override;

  std::shared_ptr<Calls> NewCalls() override;
  void Send(const std::shared_ptr<Calls>& calls, int64_t to, const std::string& key,
            std::shared_ptr<const Message> message, Done done) override;
  void Receive(const std::shared_ptr<Calls>& calls, int64_t from, const std::string& key,
               std::shared_ptr<Message> message, Done done) override;
  void Check(int64_t worker, std::chrono::nanoseconds limit, Done done) override;

 private:
  struct Polled;

  explicit Links(std::shared_ptr<Polled> polled) : polled_(std::move(polled)) {}

  static void Poll(const std::shared_ptr<Polled>& polled);

  Link& To(int64_t worker) const;

  const std::shared_ptr<Polled> polled_;
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_LINKS_H_
