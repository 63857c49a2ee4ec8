import {
  createRootRoute,
  createRoute,
  createRouter,
  lazyRouteComponent,
  Outlet,
  redirect,
} from "@tanstack/react-router";
import { Failed, Loading } from "@/ui/states";
import { choice, flag, search, text } from "./search";
import { whoIsThere } from "./session";
import { Shell } from "./shell";

const root = createRootRoute({ component: Outlet });

const login = createRoute({
  getParentRoute: () => root,
  path: "/login",
  validateSearch: search({ to: text(500) }),
  component: lazyRouteComponent(() => import("@/pages/login/login"), "LoginPage"),
});

const app = createRoute({
  getParentRoute: () => root,
  id: "app",
  beforeLoad: async ({ location }) => {
    const identity = await whoIsThere();
    if (!identity || identity.must_change_password) {
      throw redirect({ to: "/login", search: { to: location.href } });
    }
  },
  component: Shell,
});

const page = <P extends string>(path: P) => ({ getParentRoute: () => app, path }) as const;

const overview = createRoute({
  ...page("/"),
  component: lazyRouteComponent(() => import("@/pages/overview/overview"), "OverviewPage"),
});
const flow = createRoute({
  ...page("/flow"),
  validateSearch: search({ q: text(200), view: choice("graph", "table") }),
  component: lazyRouteComponent(() => import("@/pages/flow/flow"), "FlowPage"),
});
const reliability = createRoute({
  ...page("/reliability"),
  component: lazyRouteComponent(() => import("@/pages/reliability/reliability"), "ReliabilityPage"),
});
const topics = createRoute({
  ...page("/topics"),
  validateSearch: search({ q: text(200), sort: text(40), label: text(400), create: flag }),
  component: lazyRouteComponent(() => import("@/pages/topics/list"), "TopicsPage"),
});
const topic = createRoute({
  ...page("/topics/$name"),
  validateSearch: search({ tab: choice("live", "settings", "danger") }),
  component: lazyRouteComponent(() => import("@/pages/topics/detail"), "TopicPage"),
});
const subscriptions = createRoute({
  ...page("/subscriptions"),
  validateSearch: search({
    q: text(200),
    view: choice("durable", "live", "groups", "clients"),
    create: flag,
    group: text(255),
    node: text(200),
  }),
  component: lazyRouteComponent(() => import("@/pages/subscriptions/list"), "SubscriptionsPage"),
});
const subscription = createRoute({
  ...page("/subscriptions/$name"),
  component: lazyRouteComponent(() => import("@/pages/subscriptions/detail"), "SubscriptionPage"),
});
const messages = createRoute({
  ...page("/messages"),
  validateSearch: search({
    topic: text(200),
    view: choice("tail", "browse", "scheduled", "publish"),
    decoder: choice("auto", "json", "messagepack", "text", "hex"),
    from: choice("earliest", "latest", "token", "time"),
    at: text(40),
    q: text(200),
    queue: text(4),
    node: text(200),
  }),
  component: lazyRouteComponent(() => import("@/pages/messages/messages"), "MessagesPage"),
});
const nodes = createRoute({
  ...page("/nodes"),
  component: lazyRouteComponent(() => import("@/pages/nodes/nodes"), "NodesPage"),
});
const cluster = createRoute({
  ...page("/cluster"),
  validateSearch: search({ topic: text(200), node: text(200) }),
  component: lazyRouteComponent(() => import("@/pages/cluster/cluster"), "ClusterPage"),
});
const limits = createRoute({
  ...page("/limits"),
  validateSearch: search({ topic: text(200), edit: text(200), create: flag }),
  component: lazyRouteComponent(() => import("@/pages/limits/limits"), "LimitsPage"),
});
const pipelines = createRoute({
  ...page("/pipelines"),
  validateSearch: search({ name: text(200), create: flag }),
  component: lazyRouteComponent(() => import("@/pages/pipelines/pipelines"), "PipelinesPage"),
});
const mirrors = createRoute({
  ...page("/mirrors"),
  validateSearch: search({ name: text(200), create: flag }),
  component: lazyRouteComponent(() => import("@/pages/mirrors/mirrors"), "MirrorsPage"),
});
const access = createRoute({
  ...page("/access"),
  validateSearch: search({ tab: choice("keys", "users"), edit: text(200), create: flag }),
  component: lazyRouteComponent(() => import("@/pages/access/access"), "AccessPage"),
});
const audit = createRoute({
  ...page("/audit"),
  validateSearch: search({
    actor: text(200),
    kind: text(60),
    name: text(200),
    outcome: choice("done", "denied", "failed"),
    since: text(40),
    until: text(40),
  }),
  component: lazyRouteComponent(() => import("@/pages/audit/audit"), "AuditPage"),
});
const alerts = createRoute({
  ...page("/alerts"),
  validateSearch: search({
    tab: choice("fired", "rules", "silences"),
    edit: text(200),
    create: flag,
  }),
  component: lazyRouteComponent(() => import("@/pages/alerts/alerts"), "AlertsPage"),
});

const pages = [
  overview,
  flow,
  reliability,
  topics,
  topic,
  subscriptions,
  subscription,
  messages,
  limits,
  nodes,
  cluster,
  pipelines,
  mirrors,
  access,
  audit,
  alerts,
] as const;

export const routeTree = root.addChildren([login, app.addChildren([...pages])]);

export const router = createRouter({
  routeTree,
  defaultPreload: "intent",
  scrollRestoration: false,
  defaultPendingComponent: () => (
    <div className="p-5">
      <Loading />
    </div>
  ),
  defaultErrorComponent: ({ error, reset }) => (
    <div className="p-5">
      <Failed error={error} retry={reset} />
    </div>
  ),
  defaultNotFoundComponent: () => (
    <div className="p-5">
      <Failed error="There is no such page. Press g o for the overview." />
    </div>
  ),
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
