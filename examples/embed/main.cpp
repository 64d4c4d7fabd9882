// embed MODEL PROMPT: the prompt's continuation, as it comes.
#include <chorus/engine.h>
#include <iostream>

int main(int count, char** arguments) {
  if (count != 3) return std::cerr << "usage: embed MODEL PROMPT\n", 2;
  const auto fail = [](const chorus::Status& status) {
    std::cerr << status.to_string() << '\n';
    return 1;
  };
  auto engine = chorus::Engine::open(arguments[1]);
  if (!engine.ok()) return fail(engine.status());
  auto session = (*engine)->open_session();
  if (!session.ok()) return fail(session.status());
  auto generation = (*engine)->generate(*session, arguments[2], {.max_new_tokens = 24});
  if (!generation.ok()) return fail(generation.status());
  while (generation->read()) std::cout << generation->new_text() << std::flush;
  std::cout << '\n';
  return generation->error().ok() ? 0 : fail(generation->error());
}
