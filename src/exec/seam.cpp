#include "exec/executor.h"
#include "exec/module.h"
