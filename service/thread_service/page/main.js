/** Puts the views together. */

import * as filing from "./filing.js";
import * as graph from "./graph.js";
import * as library from "./library.js";
import * as node from "./node.js";
import { watchOwner } from "./owner.js";
import { route } from "./router.js";
import * as search from "./search.js";
import { watchState } from "./state.js";

const again = route({ search, graph, library, file: filing, node }, "search");
watchOwner(again);
watchState(again);
