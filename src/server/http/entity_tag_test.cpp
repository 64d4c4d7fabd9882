#include "server/http/entity_tag.h"

#include <gtest/gtest.h>

namespace chorus::http {
namespace {

TEST(EntityTag, IsNamedByStarAndByListsWeakly) {
  for (const char* named : {R"("a")", R"(W/"a")", R"("b", "a")", R"("b",W/"a","c")",
                            R"(W/"b" ,"a")", R"(, ,"a",)", R"("x,y","a")", "*"}) {
    EXPECT_TRUE(names_entity_tag(named, R"("a")")) << named;
    EXPECT_TRUE(names_entity_tag(named, R"(W/"a")")) << named;
  }
}

TEST(EntityTag, IsNotNamedByOthersOrMistakes) {
  for (const char* other :
       {"", "a", R"("a)", R"(w/"a")", R"("b")", R"("A")", R"(","a")", R"("b" "a")", R"(x"a")",
        R"("b",x,"a")", R"(*,"b")", "W/", ",", R"("x,"a",y")"}) {
    EXPECT_FALSE(names_entity_tag(other, R"("a")")) << other;
  }
}

}  // namespace
}  // namespace chorus::http
