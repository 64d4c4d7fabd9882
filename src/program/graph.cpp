#include "program/graph.h"
