// embed_c MODEL PROMPT: the prompt's continuation, as it comes.
#include <chorus/chorus.h>
#include <stdio.h>
#include <string.h>

static int32_t show(void* context, const chorus_update* update) {
  fwrite(update->text, 1, update->text_size, context);
  return ferror(context);
}

int main(int count, char** arguments) {
  if (count != 3) return fputs("usage: embed_c MODEL PROMPT\n", stderr), 2;
  chorus_engine* engine = NULL;
  chorus_session* session = NULL;
  chorus_generation* generation = NULL;
  chorus_error error = {.code = CHORUS_OK};
  const chorus_generation_options options = {.size = sizeof options, .max_new_tokens = 24};
  chorus_result result = {.size = sizeof result};
  const char* prompt = arguments[2];

  if (chorus_engine_open(arguments[1], NULL, &engine, &error) == CHORUS_OK &&
      chorus_session_open(engine, NULL, &session, &error) == CHORUS_OK &&
      chorus_session_generate_text(session, prompt, strlen(prompt), &options, &generation,
                                   &error) == CHORUS_OK &&
      chorus_generation_run(generation, show, stdout, &error) == CHORUS_OK &&
      chorus_generation_get_result(generation, &result, &error) == CHORUS_OK) {
    error = result.error;
    putchar('\n');
  }
  if (error.code != CHORUS_OK) fprintf(stderr, "%s: %s\n", error.field, error.message);

  chorus_generation_close(generation);
  chorus_session_close(session);
  chorus_engine_close(engine);
  return error.code == CHORUS_OK ? 0 : 1;
}
