#include "base/result.h"

#include <gtest/gtest.h>
#include <memory>

namespace chorus {
namespace {

Result<std::unique_ptr<int>> half(int value) {
  if (value % 2 != 0) return invalid_argument("value", "expected an even number");
  return std::make_unique<int>(value / 2);
}

Result<int> quarter(int value) {
  CHORUS_ASSIGN_OR_RETURN(const auto first, half(value));
  CHORUS_ASSIGN_OR_RETURN(const auto second, half(*first));
  return *second;
}

Status check_quarter(int value) {
  CHORUS_RETURN_IF_ERROR(quarter(value).status());
  return Status();
}

TEST(Result, CarriesValuesAndErrors) {
  EXPECT_EQ(quarter(12).value(), 3);
  const auto error = quarter(6);
  ASSERT_FALSE(error.ok());
  EXPECT_EQ(error.status(), invalid_argument("value", "expected an even number"));
  EXPECT_TRUE(check_quarter(4).ok());
  EXPECT_EQ(check_quarter(5).code(), Code::kInvalidArgument);
}

TEST(Status, PutsTheContextInFront) {
  const Status status = data_loss("offset", "expected at most 5").within("tensor 3");
  EXPECT_EQ(status.to_string(), "tensor 3.offset: expected at most 5");
  EXPECT_EQ(data_loss("", "bad").within("file").field(), "file");
  EXPECT_TRUE(Status().within("file").ok());
}

TEST(Status, EveryCodeHasAName) {
  EXPECT_EQ(code_name(Code::kInvalidArgument), "invalid_argument");
  EXPECT_EQ(code_name(Code::kDeadlineExceeded), "deadline_exceeded");
  EXPECT_EQ(code_name(Code::kDataLoss), "data_loss");
}

TEST(ResultDeathTest, ReadingAValueThatIsNotThereAborts) {
  EXPECT_DEATH((void)half(3).value(), "check failed");
}

}  // namespace
}  // namespace chorus
